"""Which pods are one workload, whose it is, and since when it waits.

A Job of one worker, an Indexed Job whose workers are all up together, a PyTorchJob, and a Job whose
pods say `runai/gang: "true"`, are one workload; of everything else each pod is its own. A Job's
pods have the Job's age, so that one that was made again keeps its place in the queue (R9). A Job
that is held has no pods: its workers are drawn from its template. Makes no calls; `Grouping`
remembers only what it drew last. Called by `scheduling`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import is_, itemgetter
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import PYTORCH_JOB, SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.wire.amounts import MOST_WORKERS


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
    is_clearing: bool = False
    """Whether pods of before its pause are still there, though they have ended."""

    @property
    def first(self) -> Pod:
        """Return a pod that stands for all of them."""
        return self.pods[0]

    @property
    def is_resizable(self) -> bool:
        """Tell whether it is one process that may be started again on another number of devices."""
        may_be = self.job is not None and self.job.may_be_held and self.job.parallelism <= 1
        return may_be and self.first.may_be_resized

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
        if self.job is not None and min(self.job.parallelism, self.job.completions) > MOST_WORKERS:
            return f"more than {MOST_WORKERS} workers cannot be started together: submit fewer"
        return first.unsupported or (first.is_blind if first.is_made and not first.node else "")


class Grouping:
    """Draws workloads one time after the other; one that is as it was is the same object again.

    Of thousands of workloads a few have changed when somebody looks: the others cost a comparison.
    """

    def __init__(self) -> None:
        """Begin with nothing drawn."""
        self._drafts: dict[str, _Drafted] = {}
        self._groups: dict[str, tuple[_Draft, Group]] = {}

    def groups(
        self,
        pods: Iterable[Pod],
        jobs: Mapping[str, Job],
        namespaces: Mapping[str, str],
        default_project: str,
        awaited: Collection[str] = (),
    ) -> list[Group]:
        """Return the workloads for our scheduler, oldest first.

        `jobs` are by UID, `namespaces` says which project's each one is ("" is nobody's), `awaited`
        are Jobs that were let go and have not made all of their pods. Pods that nothing can be
        decided about (finished, gated, leaving before they ran) are not there.
        """
        clearing: set[str] = set()
        members: dict[str, list[Pod]] = {
            uid: [] for uid, job in jobs.items() if _is_queued(job, uid in awaited)
        }
        for pod in pods:
            if pod.scheduler == SCHEDULER and not pod.is_reservation and _counts(pod, jobs):
                members.setdefault(_whole(pod, jobs), []).append(pod)
            elif (
                pod.owner is not None and pod.owner.kind == PYTORCH_JOB and pod.deleted is not None
            ):
                # The operator takes one that has ended for a failure of what it makes next.
                clearing.add(pod.owner.uid)
        drawn = [
            (draft.age, draft.first_key, uid, draft)
            for uid, of in members.items()
            if (draft := self._draft(uid, of, jobs, uid in awaited)) is not None
        ]
        self._drafts = {uid: known for uid, known in self._drafts.items() if uid in members}
        result: dict[str, Group] = {}
        kept: dict[str, tuple[_Draft, Group]] = {}
        for _age, _key, uid, draft in sorted(drawn, key=itemgetter(0, 1)):
            project = project_of(draft.pods[0], namespaces, default_project)
            label = f"{project}/{draft.name}"
            while label in result:
                label += "~"  # a pod that is called like a Job
            job = draft.job
            is_clearing = job is not None and job.is_held and job.uid in clearing
            known, group = self._groups.get(uid, (None, None))
            if (
                group is None
                or known is not draft
                or (group.name, group.is_clearing) != (label, is_clearing)
            ):
                group = _group(draft, project, label, is_clearing=is_clearing)
            result[label], kept[uid] = group, (draft, group)
        self._groups = kept
        return list(result.values())

    def _draft(
        self,
        uid: str,
        pods: Sequence[Pod],
        jobs: Mapping[str, Job],
        is_awaited: bool,  # noqa: FBT001
    ) -> "_Draft | None":
        """Put one workload together, or return it as it was; None: it has no workers."""
        whole, age = jobs.get(uid), 0.0
        if whole is None:  # a pod of its own, as old as what made it
            owner = pods[0].owner
            made_by = None if owner is None else jobs.get(owner.uid)
            age = pods[0].created if made_by is None else made_by.created
        known = self._drafts.get(uid)
        if (
            known is None
            or known.job is not whole
            or (known.age, known.is_awaited) != (age, is_awaited)
            or len(known.pods) != len(pods)
            # The very same: what we told a pod makes no other pod of it.
            or not all(map(is_, known.pods, pods))
        ):
            draft = _draft(pods, whole, age, is_awaited)
            known = self._drafts[uid] = _Drafted(pods, whole, age, is_awaited, draft)
        return known.draft if known.draft.pods else None


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
    first_key: str = ""


class _Drafted(NamedTuple):
    """A workload, and all that it was put together from."""

    pods: Sequence[Pod]
    job: Job | None
    age: float
    is_awaited: bool
    draft: _Draft


def _group(draft: _Draft, project: str, label: str, *, is_clearing: bool) -> Group:
    pods = draft.pods
    if draft.job is not None:
        pods = tuple(_seated(pod, draft.job, label, i) for i, pod in enumerate(pods))
    return Group(label, project, draft.age, pods, draft.minimum, draft.job, is_clearing)


def _is_queued(job: Job, is_awaited: bool) -> bool:  # noqa: FBT001
    """Tell whether a Job is a workload although it may have no pods."""
    if job.template.scheduler != SCHEDULER or job.is_finished:
        return False
    # One that was to have more pods at once while it was held is whole no more: its pods will be
    # on their own, but it has none before it is let go.
    return job.is_held or (job.is_whole and is_awaited and not job.is_suspended)


def _draft(
    pods: Sequence[Pod],
    whole: Job | None,
    age: float,
    is_awaited: bool,  # noqa: FBT001
) -> _Draft:
    """Put one workload together; `whole` is the Job that it is, else it is a pod of that `age`."""
    if whole is None:
        first = pods[0]
        return _Draft(name_of(first), age, (first,), 1, None, first.key)
    ordered = sorted(pods, key=lambda pod: (not pod.node, pod.key))
    # While pods still stop, those that the Job made in their place wait with it.
    if whole.runs_at_once:
        ordered = list({pod.index: pod for pod in reversed(ordered)}.values())[::-1]
    shown = sorted(ordered[: max(whole.parallelism, _held(ordered))], key=lambda pod: pod.key)
    if whole.is_held or is_awaited:
        shown += _unmade(shown, whole)
    first_key = shown[0].key if shown else ""
    return _Draft(name_of(whole), whole.created, tuple(shown), whole.minimum, whole, first_key)


def _unmade(there: Sequence[Pod], job: Job) -> list[Pod]:
    """Return the workers that a Job has no pods of yet."""
    known: set[int | None] = set()
    # An elastic job may be given more workers than it needs.
    wanted = job.completions if job.is_elastic or job.least else 0
    if job.runs_at_once:
        known = {pod.index for pod in there} | job.done
    free = (index for index in range(job.completions) if index not in known)
    return [
        job.worker(index)
        # Whoever may make Jobs may make one of two billion pods; it is refused.
        for index in islice(free, max(0, min(wanted or job.minimum, MOST_WORKERS) - len(there)))
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
    if pod.owner is None or not pod.owner.is_job:
        return True
    # We may see a pod before its Job; and one whose Job is suspended is about to be deleted.
    job = jobs.get(pod.owner.uid)
    if job is None or job.is_suspended or job.is_finished:
        return False
    # Of an elastic Job that may have fewer workers now, the surplus pods are about to go.
    return not (job.is_elastic and pod.index is not None and pod.index >= job.completions)
