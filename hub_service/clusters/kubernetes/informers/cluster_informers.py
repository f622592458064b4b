"""Informers of all objects that the platform needs, including kinds installed later.

PyTorchJobs are watched while their CustomResourceDefinition, which is watched too, says that they
are served. So nothing is polled where the kind is missing, and no restart is needed when it is
installed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, Object
from runai.hub_service.clusters.kubernetes.informers.informer import Informer
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PYTORCH_JOB,
    KubeNode,
    Pod,
    project_label,
    read_node,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import PYTORCH_JOBS, PYTORCH_KIND
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
    VOLUMES,
    Claim,
    Storage,
    StorageClass,
    Volume,
    read_claim,
    read_class,
    read_volume,
)
from runai.hub_service.model.records import ProjectRecord

TRIES_AGAIN_IN_S = 1.0
MOST_KILLED = 1000
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PYTORCH_FORBIDDEN = "PyTorchJobs are not scheduled (runai doctor names what the service may not do)"
"""Logged if the role is older than the service, or narrower than the chart's."""


class ChangeSignals:
    """Change signals for the scheduling cycle and for callers that wait for a record."""

    def __init__(self) -> None:
        """Begin without a pending change."""
        self.unseen = asyncio.Event()
        """Set while a change is not in any snapshot yet; wakes the scheduling cycle."""
        self.next = asyncio.Event()
        """Set at the next change of a record; then a new event takes its place."""

    def wake_all(self) -> None:
        """Wake the scheduling cycle and all callers that wait for a record."""
        self.unseen.set()
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake all callers that wait for the next change of a record."""
        self.next.set()
        self.next = asyncio.Event()

    def schedule_retry(self) -> None:
        """Run a scheduling cycle in 1 s, even if no watch reports a change."""
        asyncio.get_running_loop().call_later(TRIES_AGAIN_IN_S, self.unseen.set)


class ClusterInformers:
    """The informers of one cluster, one per kind."""

    def __init__(self, api: Api, changes: ChangeSignals, pool: NodePool) -> None:
        """Build the informers without starting them."""
        self._changes = changes
        on_change = changes.wake_all
        self.killed: deque[Pod] = deque(maxlen=MOST_KILLED)
        """Pods that were killed at the end of their grace, as often as a watch showed them."""

        def read_pod(found: Object) -> Pod | None:
            pod = pool.read_pod(found)
            if pod is not None and pod.is_killed:
                self.killed.append(pod)  # it may be gone before the next cycle
            return pod

        self.pods: Informer[Pod] = Informer(
            api,
            "/api/v1/pods",
            read_pod,
            on_change,
            # With thousands of pods one becomes ready at any moment; no decision depends on it.
            is_detail=_is_detail,
            on_detail=changes.wake_waiters,
        )
        self.nodes: Informer[KubeNode] = Informer(
            api, "/api/v1/nodes", read_node, on_change, labelSelector=pool.selector
        )
        self.jobs = JobInformers(api, on_change, pool)
        self.namespaces: Informer[str] = Informer(api, "/api/v1/namespaces", _project_of, on_change)
        self.projects: Informer[ProjectRecord] = Informer(
            api,
            project_objects.PROJECTS,
            project_objects.read_project,
            on_change,
            labelSelector=pool.selector,
        )
        self._claims: Informer[Claim] = Informer(
            api, "/api/v1/persistentvolumeclaims", read_claim, on_change
        )
        self._volumes: Informer[Volume] = Informer(api, VOLUMES, read_volume, on_change)
        self._classes: Informer[StorageClass] = Informer(
            api, "/apis/storage.k8s.io/v1/storageclasses", read_class, on_change
        )
        self._all: tuple[Informer[Any] | JobInformers, ...] = (
            self.pods,
            self.nodes,
            self.jobs,
            self.namespaces,
            self.projects,
            self._claims,
            self._volumes,
            self._classes,
        )

    async def run(self) -> NoReturn:
        """Run all informers until cancelled; call once."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._all:
                tasks.create_task(informer.run())
        raise AssertionError("informers run until cancelled")

    async def listed(self) -> None:
        """Return when every informer has read its first list."""
        for informer in self._all:
            await informer.listed()

    def apply_elastic_state(self, found: Object) -> None:
        """Apply a Job after writing its elastic state, and wake its workers.

        The scheduling cycle is not woken: no decision depends on that state.
        """
        self.jobs.apply(found, quietly=True)
        self._changes.wake_waiters()

    @property
    def storage(self) -> Storage:
        """Return the volume claims, volumes and storage classes."""
        return Storage(self._claims.objects, self._volumes.objects, self._classes.objects)


class JobInformers:
    """Informers of all Jobs and PyTorchJobs of a pool."""

    def __init__(self, api: Api, on_change: Callable[[], None], pool: NodePool) -> None:
        """Begin empty."""
        self._on_change = on_change
        self._jobs: Informer[Job] = Informer(api, "/apis/batch/v1/jobs", pool.read_job, on_change)
        self._pytorch: Informer[Job] = Informer(
            api, PYTORCH_JOBS, pool.read_pytorch_job, on_change, if_forbidden=PYTORCH_FORBIDDEN
        )
        self._pytorch_kind: Informer[bool] = Informer(
            api,
            KINDS,
            _is_served,
            self._on_kind_change,
            if_forbidden=PYTORCH_FORBIDDEN,
            fieldSelector=f"metadata.name={PYTORCH_KIND}",
        )
        self._kind_changed = asyncio.Event()

    def by_uid(self) -> dict[str, Job]:
        """Return all Jobs and PyTorchJobs by UID."""
        jobs = {job.uid: job for job in self._jobs.objects.values()}
        if self._is_pytorch_served:
            jobs |= {job.uid: job for job in self._pytorch.objects.values()}
        return jobs

    def find(self, namespace: str, name: str) -> Job | None:
        """Return the batch Job of that name, or None."""
        return self._jobs.objects.get(f"{namespace}/{name}")

    async def listed(self) -> None:
        """Return when the first lists of Jobs, and of PyTorchJobs if served, have been read."""
        await self._jobs.listed()
        await self._pytorch_kind.listed()
        if self._is_pytorch_served:
            await self._pytorch.listed()

    def apply(self, found: Object, *, quietly: bool = False) -> None:
        """Apply a Job from an answer before its watch reports it."""
        informer = self._pytorch if found["kind"] == PYTORCH_JOB else self._jobs
        informer.apply(found, quietly=quietly)

    def drop(self, job: Job) -> None:
        """Remove a deleted Job before its watch reports the deletion."""
        informer = self._pytorch if job.kind == PYTORCH_JOB else self._jobs
        informer.drop(f"{job.namespace}/{job.name}", job.uid)

    async def run(self) -> NoReturn:
        """Run the informers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._jobs.run())
            tasks.create_task(self._pytorch_kind.run())
            tasks.create_task(self._watch_pytorch_jobs())
        raise AssertionError("informers run until cancelled")

    @property
    def _is_pytorch_served(self) -> bool:
        served: Mapping[str, bool] = self._pytorch_kind.objects
        return served.get(PYTORCH_KIND, False)

    def _on_kind_change(self) -> None:
        self._kind_changed.set()
        self._on_change()

    async def _watch_pytorch_jobs(self) -> NoReturn:
        """Watch PyTorchJobs while their kind is installed, across reinstallations."""
        while True:
            await self._wait_until(served=True)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._pytorch.run())
                await self._wait_until(served=False)
                watch.cancel()
            self._pytorch.reset()

    async def _wait_until(self, *, served: bool) -> None:
        while self._is_pytorch_served is not served:
            self._kind_changed.clear()
            await self._kind_changed.wait()


def _is_served(kind: Object) -> bool:
    """Return True if a kind is served: Established, and not being deleted."""
    conditions = kind.get("status", {}).get("conditions") or ()
    status_by_type = {c["type"]: c["status"] for c in conditions}
    return (
        status_by_type.get("Established") == "True" and "deletionTimestamp" not in kind["metadata"]
    )


def _is_detail(before: Pod, after: Pod) -> bool:
    """Return True if a pod only became ready or got its address."""
    as_after = replace(before, is_up=after.is_up, address=after.address)
    return not after.is_elastic and as_after == after


def _project_of(namespace: Object) -> str:
    """Return the project that a namespace's label names, or ""."""
    return project_label(namespace["metadata"].get("labels", {}))
