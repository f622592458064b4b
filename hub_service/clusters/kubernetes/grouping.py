"""Which pods are one workload, whose it is, and since when it waits.

A Job of one worker, an Indexed Job whose workers are all up together, and a Job whose pods say
`runai/gang: "true"`, are one workload; of everything else each pod is its own. A Job's pods have
the Job's age, so that one that was made again keeps its place in the queue (R9). Pure; called by
`cluster`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.objects import SCHEDULER, Job, Pod

__all__ = ["Group", "groups"]


@dataclass(frozen=True, slots=True)
class Group:
    """One workload: its pods that want or hold something, in the order of their names."""

    name: str
    project: str
    submitted: float
    pods: tuple[Pod, ...]
    minimum: int
    """How many must run together."""

    @property
    def first(self) -> Pod:
        """Return a pod that stands for all of them."""
        return self.pods[0]

    @property
    def missing(self) -> int:
        """Count the workers that its Job has not made yet."""
        return max(0, self.minimum - len(self.pods))

    @property
    def refusal(self) -> str:
        """Say what it asks for that cannot be had, or ""."""
        return self.first.unsupported


def groups(
    pods: Iterable[Pod],
    jobs: Mapping[str, Job],
    namespaces: Mapping[str, str],
    default_project: str,
) -> list[Group]:
    """Return the workloads for our scheduler, oldest first.

    `jobs` are by UID, `namespaces` says which project's each one is ("" is nobody's). Pods that
    nothing can be decided about (finished, gated, leaving before they ran) are not there.
    """
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.scheduler == SCHEDULER and _counts(pod, jobs):
            members.setdefault(_whole(pod, jobs), []).append(pod)
    drawn = [_draft(of, jobs.get(uid), jobs) for uid, of in members.items()]
    taken: set[str] = set()
    result = []
    for draft in sorted(drawn, key=lambda draft: (draft.age, draft.pods[0].key)):
        first = draft.pods[0]
        project = first.project or namespaces.get(first.namespace) or default_project
        label = f"{project}/{first.namespace}.{draft.name}"
        while label in taken:
            label += "~"  # a pod that is called like a Job
        taken.add(label)
        result.append(Group(label, project, draft.age, draft.pods, draft.minimum))
    return result


@dataclass(frozen=True, slots=True)
class _Draft:
    name: str
    age: float
    pods: tuple[Pod, ...]
    minimum: int


def _draft(pods: Sequence[Pod], whole: Job | None, jobs: Mapping[str, Job]) -> _Draft:
    """Put one workload together; `whole` is the Job that it is, if it is one."""
    ordered = sorted(pods, key=lambda pod: (not pod.node, pod.key))
    first = ordered[0]
    made_by = jobs.get(first.owner.uid) if first.owner is not None else None
    age = first.created if made_by is None else made_by.created
    if whole is None:
        return _Draft(first.name, age, (first,), 1)
    # While pods still stop, those that the Job made in their place wait with it.
    shown = sorted(ordered[: max(whole.parallelism, _held(ordered))], key=lambda pod: pod.key)
    least = min(whole.parallelism, whole.completions - whole.succeeded)
    return _Draft(whole.name, age, tuple(shown), max(1, least))


def _held(pods: Sequence[Pod]) -> int:
    return sum(bool(pod.node) for pod in pods)


def _whole(pod: Pod, jobs: Mapping[str, Job]) -> str:
    """Return the UID of the workload that a pod belongs to: its Job's, or its own."""
    job = jobs.get(pod.owner.uid) if pod.owner is not None else None
    if job is not None and (job.parallelism <= 1 or job.runs_at_once or pod.is_gang):
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
    return job is not None and not job.is_suspended
