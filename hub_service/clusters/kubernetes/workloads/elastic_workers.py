"""Messages between the service and the pods of elastic jobs.

This module maps a pod to its worker; `elastic_jobs` decides on the reaction.
"""

from collections.abc import Callable, Collection, Mapping

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import translate_api_errors
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import ChangeSignals
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import (
    ElasticJob,
    ElasticJobs,
    elastic_jobs,
)
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.elastic_messages import Target, WorkerStatus
from runai.hub_service.wire.errors import NotFound


class ElasticWorkers:
    """Implementation of `base.WorkerMessages`."""

    def __init__(
        self, cache: Cache, elastic: ElasticJobs, changes: ChangeSignals, clock: Callable[[], float]
    ) -> None:
        """Find workers in `cache`; their messages change `elastic`."""
        self._cache = cache
        self._elastic = elastic
        self._changes = changes
        self._clock = clock

    async def worker_target(self, pod: str, seen: int) -> Target:
        """Return the target of a pod's job as soon as it is newer than `seen`."""
        elastic_job, _worker = await self._worker(pod)
        while True:
            change = self._changes.next
            job = self._cache.informers.jobs.find(elastic_job.job.namespace, elastic_job.job.name)
            if job is None or job.uid != elastic_job.job.uid:
                raise NotFound(f"The job of pod {pod} is gone.")
            # Only a target that is stored on the Job is sent.
            target = None if job.elastic is None else job.elastic.target
            if target is not None and target.gen > seen:
                return target
            await change.wait()

    async def store_worker_status(self, pod: str, status: WorkerStatus) -> None:
        """Apply the status that a pod reports of its worker."""
        elastic_job, worker = await self._worker(pod)
        if self._elastic.apply_status(elastic_job, worker, status):
            self._changes.wake_all()

    async def worker_ended(self, pod: str, exit_code: int) -> int:
        """Record that a worker ended; return the exit code for its pod."""
        elastic_job, worker = await self._worker(pod)
        with translate_api_errors():
            code = await self._elastic.ended(
                lambda: self._current_jobs().get(elastic_job.record.id), worker, exit_code
            )
        if code is None:
            raise NotFound(f"The job of pod {pod} is gone.")
        self._changes.wake_all()
        return code

    async def notify_resize(self, workload: WorkloadId, terminating: Collection[str]) -> None:
        """Notify an elastic job's workers of a new size; `terminating` workers stop."""
        await self._elastic.shrink(
            lambda: self._current_jobs().get(workload), terminating, self._clock()
        )

    async def _worker(self, pod: str) -> tuple[ElasticJob, str]:
        """Return a pod's elastic job and the name of its worker.

        Raises:
            NotFound: the pod is not a worker of an unfinished elastic job.
        """
        await self._cache.informers.listed()
        found = self._cache.informers.pods.objects.get(pod)
        if found is not None and found.owner is not None and found.index is not None:
            for name, elastic_job in self._current_jobs().items():
                if elastic_job.job.uid == found.owner.uid:
                    return elastic_job, f"{name}-{found.index}"
        raise NotFound(f"Pod {pod} is no worker of an elastic job.")

    def _current_jobs(self) -> Mapping[WorkloadId, ElasticJob]:
        return elastic_jobs(self._cache.state())
