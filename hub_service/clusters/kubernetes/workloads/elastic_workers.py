"""Messages between the service and the pods of elastic jobs, each about its own worker.

A pod is matched to its worker here; what follows from what it tells is decided in `elastic`.
"""

from collections.abc import Callable, Collection, Mapping

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import asking
from runai.hub_service.clusters.kubernetes.informers.job_informers import Changes
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import (
    Drawn,
    ElasticJobs,
    elastic_jobs,
)
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.elastic_messages import Status, Target
from runai.hub_service.wire.errors import NotFound


class ElasticWorkers:
    """Implements `base.WorkerMessages`."""

    def __init__(
        self, cache: Cache, elastic: ElasticJobs, changes: Changes, clock: Callable[[], float]
    ) -> None:
        """Find workers in the cache; their messages change `elastic`."""
        self._cache = cache
        self._elastic = elastic
        self._changes = changes
        self._clock = clock

    async def worker_target(self, pod: str, seen: int) -> Target:
        """Return the target of a pod's job as soon as it is newer than the one it has seen."""
        drawn, _worker = await self._worker(pod)
        while True:
            change = self._changes.next
            job = self._cache.informers.jobs.find(drawn.job.namespace, drawn.job.name)
            if job is None or job.uid != drawn.job.uid:
                raise NotFound(f"The job of pod {pod} is gone.")
            # What is not written yet nobody hears of.
            target = None if job.elastic is None else job.elastic.target
            if target is not None and target.gen > seen:
                return target
            await change.wait()

    async def worker_told(self, pod: str, status: Status) -> None:
        """Take in what a pod tells of its worker."""
        drawn, worker = await self._worker(pod)
        if self._elastic.heard(drawn, worker, status):
            self._changes.signal()

    async def worker_ended(self, pod: str, exit_code: int) -> int:
        """Return how a pod is to end whose worker ended with this exit code."""
        drawn, worker = await self._worker(pod)
        with asking():
            told = await self._elastic.ended(
                lambda: self._drawn_now().get(drawn.record.id), worker, exit_code
            )
        if told is None:
            raise NotFound(f"The job of pod {pod} is gone.")
        self._changes.signal()
        return told

    async def tell_leaving(self, workload: WorkloadId, leaving: Collection[str]) -> None:
        """Tell an elastic job's workers that its size changes, and who of them leaves, by name."""
        await self._elastic.shrink(lambda: self._drawn_now().get(workload), leaving, self._clock())

    async def _worker(self, pod: str) -> tuple[Drawn, str]:
        """Find a pod's elastic job, and what its worker is called.

        Raises:
            NotFound: it is no worker of an elastic job that goes on.
        """
        await self._cache.informers.listed()
        found = self._cache.informers.pods.objects.get(pod)
        if found is not None and found.owner is not None and found.index is not None:
            for name, drawn in self._drawn_now().items():
                if drawn.job.uid == found.owner.uid:
                    return drawn, f"{name}-{found.index}"
        raise NotFound(f"Pod {pod} is no worker of an elastic job.")

    def _drawn_now(self) -> Mapping[WorkloadId, Drawn]:
        return elastic_jobs(self._cache.known())
