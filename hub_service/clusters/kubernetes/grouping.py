"""Which pods are one workload, whose it is, and since when it waits.

A Job of one worker, an Indexed Job whose workers are all up together, and a Job whose pods say
`runai/gang: "true"`, are one workload; of everything else each pod is its own. A Job's pods have
the Job's age, so that one that was made again keeps its place in the queue (R9). A Job that is held
has no pods: its workers are drawn from its template. Pure; called by `cluster`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from runai.hub_service.clusters.kubernetes.jobs import Job
from runai.hub_service.clusters.kubernetes.objects import SCHEDULER, Pod

__all__ = ["Group", "groups", "name_of", "project_of"]


@dataclass(frozen=True, slots=True)
class Group:
    """One workload: its pods that want or hold something, in the order of their names."""

    name: str
    project: str
    submitted: float
    pods: tuple[Pod, ...]
    minimum: int
    """How many must run together."""
    job: Job | None = None
    """The Job that it is; None: a pod of its own."""

    @property
    def first(self) -> Pod:
        """Return a pod that stands for all of them."""
        return self.pods[0]

    @property
    def missing(self) -> int:
        """Count the workers that its Job has not made yet."""
        return max(0, self.minimum - len(self.pods))

    @property
    def unmade(self) -> Sequence[Pod]:
        """Return the workers that have no pods yet."""
        return [pod for pod in self.pods if not pod.is_made]

    @property
    def refusal(self) -> str:
        """Say what it asks for that cannot be had, or ""."""
        first = self.first
        return first.unsupported or (first.is_blind if first.is_made and not first.node else "")


def groups(
    pods: Iterable[Pod],
    jobs: Mapping[str, Job],
    namespaces: Mapping[str, str],
    default_project: str,
    awaited: Collection[str] = (),
) -> list[Group]:
    """Return the workloads for our scheduler, oldest first.

    `jobs` are by UID, `namespaces` says which project's each one is ("" is nobody's), `awaited` are
    Jobs that were let go and have not made all of their pods. Pods that nothing can be decided
    about (finished, gated, leaving before they ran) are not there.
    """
    members: dict[str, list[Pod]] = {
        uid: [] for uid, job in jobs.items() if _is_queued(job, uid in awaited)
    }
    for pod in pods:
        if pod.scheduler == SCHEDULER and not pod.is_reservation and _counts(pod, jobs):
            members.setdefault(_whole(pod, jobs), []).append(pod)
    drawn = [_draft(of, jobs.get(uid), jobs, uid in awaited) for uid, of in members.items()]
    taken: set[str] = set()
    result = []
    for draft in sorted(
        filter(_has_workers, drawn), key=lambda draft: (draft.age, draft.pods[0].key)
    ):
        first = draft.pods[0]
        project = project_of(first, namespaces, default_project)
        label = f"{project}/{draft.name}"
        while label in taken:
            label += "~"  # a pod that is called like a Job
        taken.add(label)
        pods_of = draft.pods
        if draft.job is not None:
            pods_of = tuple(_seated(pod, draft.job, label, i) for i, pod in enumerate(draft.pods))
        result.append(Group(label, project, draft.age, pods_of, draft.minimum, draft.job))
    return result


def project_of(pod: Pod, namespaces: Mapping[str, str], default_project: str) -> str:
    """Return whose a pod is."""
    return pod.project or namespaces.get(pod.namespace) or default_project


def name_of(found: Pod | Job) -> str:
    """Return what a workload is called in its project: as it was submitted, or where it is."""
    if isinstance(found, Job) and found.spec is not None:
        return found.spec.name
    return f"{found.namespace}.{found.name}"


@dataclass(frozen=True, slots=True)
class _Draft:
    name: str
    age: float
    pods: tuple[Pod, ...]
    minimum: int
    job: Job | None = None


def _has_workers(draft: _Draft) -> bool:
    return bool(draft.pods)


def _is_queued(job: Job, is_awaited: bool) -> bool:  # noqa: FBT001
    """Tell whether a Job is a workload although it may have no pods."""
    is_ours = job.template.scheduler == SCHEDULER and job.is_whole and not job.is_finished
    return is_ours and (job.is_held or (is_awaited and not job.is_suspended))


def _draft(
    pods: Sequence[Pod],
    whole: Job | None,
    jobs: Mapping[str, Job],
    is_awaited: bool,  # noqa: FBT001
) -> _Draft:
    """Put one workload together; `whole` is the Job that it is, if it is one."""
    ordered = sorted(pods, key=lambda pod: (not pod.node, pod.key))
    if whole is None:
        first = ordered[0]
        made_by = jobs.get(first.owner.uid) if first.owner is not None else None
        age = first.created if made_by is None else made_by.created
        return _Draft(name_of(first), age, (first,), 1)
    # While pods still stop, those that the Job made in their place wait with it.
    if whole.runs_at_once:
        ordered = list({pod.index: pod for pod in reversed(ordered)}.values())[::-1]
    shown = sorted(ordered[: max(whole.parallelism, _held(ordered))], key=lambda pod: pod.key)
    if whole.is_held or is_awaited:
        shown += _unmade(shown, whole)
    return _Draft(name_of(whole), whole.created, tuple(shown), whole.minimum, whole)


def _unmade(there: Sequence[Pod], job: Job) -> list[Pod]:
    """Return the workers that a Job has no pods of yet."""
    known: set[int | None] = set()
    if job.runs_at_once:
        known = {pod.index for pod in there} | job.completed
    free = (index for index in range(job.completions) if index not in known)
    return [
        replace(
            job.template,
            uid=f"{job.uid}/{index}",
            name=f"{job.name}-{index}",
            index=index,
            is_made=False,
        )
        for index in islice(free, max(0, job.minimum - len(there)))
    ]


def _seated(pod: Pod, job: Job, label: str, position: int) -> Pod:
    """Name a worker so that the pod that its Job makes for it next has the same name."""
    number = pod.index if job.runs_at_once and pod.index is not None else position
    return replace(pod, worker=f"{label}-{number}", seat=f"{job.uid}/{number}")


def _held(pods: Sequence[Pod]) -> int:
    return sum(bool(pod.node) for pod in pods)


def _whole(pod: Pod, jobs: Mapping[str, Job]) -> str:
    """Return the UID of the workload that a pod belongs to: its Job's, or its own."""
    job = jobs.get(pod.owner.uid) if pod.owner is not None else None
    if job is not None and (job.is_whole or pod.is_gang):
        return job.uid
    return pod.uid


def _counts(pod: Pod, jobs: Mapping[str, Job]) -> bool:
    if pod.node or pod.is_finished:
        return not pod.is_finished
    if pod.deleted is not None or pod.is_gated:
        return False
    if pod.owner is None or pod.owner.kind != "Job":
        return True
    # We may see a pod before its Job; and one whose Job is suspended is about to be deleted.
    job = jobs.get(pod.owner.uid)
    return job is not None and not job.is_suspended and not job.is_finished
