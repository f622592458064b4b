"""Memory of ended programs, by Job or element: the next start is told of them."""

from collections.abc import Iterable, Mapping

from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job


class EarlierRuns:
    """Set of Jobs, and of places in Jobs, with an ended program.

    A pod that was evicted, or lost with its node, leaves no other trace.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._up: dict[str, str] = {}
        """Keys of running programs, by the UID of their pod."""
        self._ended: set[str] = set()

    def update(self, pods: Iterable[Pod], jobs: Mapping[str, Job]) -> None:
        """Record running and ended programs; `jobs` are by UID."""
        before, self._up = self._up, {}
        for pod in pods:
            job = None if pod.owner is None else jobs.get(pod.owner.uid)
            if job is None or not (pod.is_up or pod.exit_code is not None or pod.uid in before):
                continue
            if pod.is_finished or pod.deleted is not None:
                self._ended.add(_key(pod, job))
            else:
                self._up[pod.uid] = _key(pod, job)
        self._ended.update(key for uid, key in before.items() if uid not in self._up)
        self._ended = {key for key in self._ended if key.partition("/")[0] in jobs}

    def include(self, pod: Pod, job: Job | None) -> bool:
        """Return True if a program of a pod's Job, or of its place in the Job, has ended."""
        return job is not None and _key(pod, job) in self._ended


def _key(pod: Pod, job: Job) -> str:
    """Return the UID of a whole Job, else the place in it; a pod without an index has its own."""
    if job.is_whole:
        return job.uid
    return f"{job.uid}/{pod.uid if pod.index is None else pod.index}"
