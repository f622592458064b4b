"""Kubernetes as a cluster: workloads are Jobs, projects custom resources, logs come from kubelets.

The API server alone stores acknowledged state. Sessions are the pods that JupyterHub creates: the
service shows and schedules them, and never creates them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import Api, Object, translate_api_errors
from runai.hub_service.clusters.kubernetes.events.pod_conditions import create_event, pod_path
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import IMAGE
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import (
    ChangeSignals,
    ClusterInformers,
)
from runai.hub_service.clusters.kubernetes.informers.node_pool import EVERYTHING, NodePool
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    AS_NOTEBOOKS,
    DELETED_ELEMENTS,
    PAUSED_ELEMENTS,
    Confinement,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    Job,
    Ran,
    paused_text,
    resumed,
    suspended,
    with_workers,
)
from runai.hub_service.clusters.kubernetes.scheduling import Scheduling
from runai.hub_service.clusters.kubernetes.workloads import history, logs
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import ElasticJobs
from runai.hub_service.clusters.kubernetes.workloads.elastic_workers import ElasticWorkers
from runai.hub_service.clusters.kubernetes.workloads.gpu_inventory import GpuInventory
from runai.hub_service.clusters.kubernetes.workloads.project_store import ProjectStore
from runai.hub_service.clusters.kubernetes.workloads.sessions import PodSessions
from runai.hub_service.clusters.kubernetes.workloads.submissions import Submissions
from runai.hub_service.clusters.kubernetes.workloads.workload_lookup import WorkloadLookup
from runai.hub_service.clusters.states.worker_bounds import scaled
from runai.hub_service.model import arrays
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import ElasticRules, HistoryEvent, WorkloadId, WorkloadRecord


class KubernetesCluster:
    """Implementation of `base.Cluster`; most methods are delegated to its parts."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str = "default",
        image: str = "",
        api_url: str = "",
        ttl_s: int | None = None,
        bounds: Confinement = AS_NOTEBOOKS,
        default_project: str = "default",
        reservation_image: str = IMAGE,
        elastic: ElasticRules | None = None,
        pool: NodePool = EVERYTHING,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Configure the cluster; Jobs are created in `namespace`, where the notebooks are.

        A Job runs in the image of its user's notebook, or in `image` if the user has none. Jobs
        reach the service at `api_url`. Kubernetes deletes Jobs `ttl_s` seconds after their end;
        None: they stay until a user deletes them. Created objects carry the labels of `pool`.
        """
        changes = ChangeSignals()
        informers = ClusterInformers(api, changes, pool)
        elastic_jobs = ElasticJobs(api, informers.apply_elastic_state, elastic or ElasticRules())
        self.cache = cache = Cache(informers, elastic_jobs, pool, default_project)
        self._api, self._changes, self._clock = api, changes, clock
        self._deleting = asyncio.Lock()
        """Held from reading which elements of an array are deleted until one more is stored."""

        self.scheduling = Scheduling(
            api,
            cache,
            elastic_jobs,
            changes,
            pool=pool,
            reservation_image=reservation_image,
            clock=clock,
        )
        self.run = self.scheduling.run
        self.changed = self.scheduling.changed
        self.observe = self.scheduling.observe
        self.apply = self.scheduling.apply

        self.lookup = lookup = WorkloadLookup(cache, changes)
        self.workloads = lookup.workloads
        self.changes = lookup.changes
        self.names = lookup.names
        self.holders = lookup.holders
        self.workload = lookup.workload
        self.wait = lookup.wait
        self.allocations = lookup.allocations

        self.submissions = Submissions(
            api,
            cache,
            lookup,
            namespace=namespace,
            image=image,
            api_url=api_url,
            ttl_s=ttl_s,
            bounds=bounds,
            pool=pool,
        )
        self.submit = self.submissions.submit
        self.submitted = self.submissions.submitted
        self.unfinished_jobs = self.submissions.unfinished_jobs

        sessions = PodSessions(lookup)
        self.attach = sessions.attach
        self.release = sessions.release
        self.regain = sessions.regain
        self.environment = sessions.environment

        project_store = ProjectStore(api, informers.projects, pool, lookup.workloads)
        self.projects = project_store.projects
        self.put_project = project_store.put_project
        self.change_project = project_store.change_project
        self.delete_project = project_store.delete_project

        inventory = GpuInventory(cache, changes, self.scheduling.sharing, self.scheduling.sizes)
        self.devices = inventory.devices
        self.note_holders = inventory.note_holders
        self.note_faults = inventory.note_faults

        self.elastic = ElasticWorkers(cache, elastic_jobs, changes, clock)

    async def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return the history of a workload; the API server keeps Events for an hour."""
        record = await self.workload(workload)
        is_element = self.lookup.element(workload) is not None
        subjects: Sequence[Job | Pod] = (
            await self.lookup.pods_of(workload)
            if is_element
            else [await self.lookup.subject(workload)]
        )
        with translate_api_errors():
            return await history.read(self._api, record, subjects)

    async def suspend(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Remove a Job from the queue, and stop it if it runs."""
        job = await self.lookup.job(workload, "suspended", uid)
        if job.is_suspended and not job.is_queued:
            return await self.workload(workload)
        self.cache.drop_nominations(job.uid)
        now = self._clock()
        limited = self.cache.limited(self.lookup.pods_of_job(job)).values()
        ran = {
            limit.element: Ran(limit.seconds_at(now), now)
            for limit in limited
            if limit.subject.uid == job.uid
        }
        change = suspended(job, by, ran)
        if job.is_array:
            running = {p.index or 0 for p in self.lookup.pods_of_job(job) if p.uses_node}
            times = {index: job.paused.get(index, ()) for index in running}
            change["metadata"]["annotations"][PAUSED_ELEMENTS] = paused_text(job, times)
        return await self._change_job(job, change, "Suspended", f"suspended by {by}")

    async def resume(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Return a suspended Job to its old place in the queue."""
        job = await self.lookup.job(workload, "resumed", uid)
        if not job.is_suspended or job.is_queued:
            return await self.workload(workload)
        return await self._change_job(job, resumed(job), "Queued", f"resumed by {by}")

    async def scale(
        self,
        workload: WorkloadId,
        *,
        workers: int | None,
        min_workers: int | None,
        by: str,
        uid: str = "",
    ) -> WorkloadRecord:
        """Change the worker bounds of an elastic Job; surplus workers are notified first."""
        job = await self.lookup.job(workload, "scaled", uid)
        record = await self.lookup.single_workload(workload)
        now = self._clock()
        row = scaled(record, workers=workers, min_workers=min_workers, by=by, now=now).row
        if row is None or row.scale is None:
            return record
        new_max, new_min = row.scale
        await self.elastic.notify_resize(
            workload, {worker.name for worker in record.workers[new_max:]}
        )
        with translate_api_errors():
            found = await self._api.patch(
                job.path, with_workers(job, max_workers=new_max, min_workers=new_min)
            )
        terminating = [
            pod.uid for pod in await self.lookup.pods_of(workload) if (pod.index or 0) >= new_max
        ]
        self.cache.assumed.record_scaled(job, terminating, now)
        # A faster watch may already have caused a record without the assumed state.
        self._changes.wake_waiters()
        self.cache.informers.jobs.apply(found)
        await self._write_event(job, "Scaled", f"{by} set its workers to {new_min} to {new_max}")
        return await self.workload(workload)

    async def delete(self, workload: WorkloadId, *, by: str, uid: str = "") -> None:
        """Delete a workload's Job or pod; a running Job stays until its pods are gone.

        A later Job or pod of the same name is spared: the deletion requires the uid found here.
        """
        await self.lookup.workload_with_uid(workload, uid)
        if (element := self.lookup.element(workload)) is not None:
            await self._delete_element(*element, by)
            return
        subject = await self.lookup.subject(workload)
        if subject.deleted is not None:
            return
        await self._write_event(subject, "Deleted", f"deleted by {by}")
        if isinstance(subject, Job):
            has_pods = any(pod.uses_node for pod in self.lookup.pods_of_job(subject))
            await self.submissions.delete_job(subject, has_pods=has_pods)
            return
        with translate_api_errors():
            await self._api.delete(pod_path(subject), {"preconditions": {"uid": subject.uid}})

    async def note(self, workload: WorkloadId, text: str) -> None:
        """Write a warning about a workload as an Event."""
        await self.workload(workload)
        subject = await self.lookup.subject(workload)
        await self._write_event(subject, "Warning", text, is_warning=True)

    async def logs(
        self,
        workload: WorkloadId,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
        uid: str = "",
    ) -> AsyncIterator[LogChunk]:
        """Yield the logs of a workload's pods.

        Logs of earlier attempts are deleted with their pods.
        """
        first = await self.lookup.single_workload(workload, uid)

        async def poll() -> logs.LogSources:
            change = self._changes.next
            record = await self.lookup.workload_with_uid(workload, first.uid)
            pods = await self.lookup.pods_of(workload, first.uid)
            return logs.LogSources(record, pods, change)

        if follow:
            chunks = logs.follow(self._api, poll, worker=worker, tail=tail, parts=parts)
        else:
            chunks = logs.read(self._api, await poll(), worker=worker, tail=tail)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def unsaved_pauses(self) -> Mapping[str, int]:
        """Return nothing: checkpoints are in volumes that the service cannot read."""
        return {}

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return nothing: progress reports are files inside the pods."""
        del only
        return {}

    # -- inside ------------------------------------------------------------------------------------

    async def _delete_element(self, array: Job, index: int, by: str) -> None:
        """Store that an element is deleted; the next cycle ends its pod.

        With its last element the array's Job is deleted.
        """
        async with self._deleting:
            jobs = self.cache.informers.jobs.by_uid()
            if (job := jobs.get(array.uid)) is None or index in job.deleted_elements:
                return
            remaining = set(range(job.completions)) - job.deleted_elements - {index}
            if not remaining:
                has_pods = any(pod.uses_node for pod in self.lookup.pods_of_job(job))
                await self.submissions.delete_job(job, has_pods=has_pods)
                return
            deleted = arrays.text(arrays.without(((0, job.completions),), remaining))
            annotations = {DELETED_ELEMENTS: deleted}
            change = {"metadata": {"uid": job.uid, "annotations": annotations}}
            await self._change_job(job, change, "Deleted", f"element {index} deleted by {by}")

    async def _change_job(
        self, job: Job, change: Object, reason: str, message: str
    ) -> WorkloadRecord:
        """Patch a Job, write an Event about it, and return the record of its workload."""
        with translate_api_errors():
            found = await self._api.patch(job.path, change)
        self.cache.informers.jobs.apply(found)
        changed = await self.workload(self.cache.id_of(job))
        await self._write_event(job, reason, message)
        return changed

    async def _write_event(
        self, subject: Job | Pod, reason: str, message: str, *, is_warning: bool = False
    ) -> None:
        with translate_api_errors():
            await create_event(self._api, subject, reason, message, is_warning=is_warning)
