"""Watches of all objects that the platform needs, also of kinds that are installed later.

PyTorchJobs are followed while their CustomResourceDefinition says that they are served, and that is
watched: where there is none nothing is asked again and again, and nobody has to restart us when
there is.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, Object
from runai.hub_service.clusters.kubernetes.informers.informer import Mirror
from runai.hub_service.clusters.kubernetes.informers.node_pool import Pool
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PYTORCH_JOB,
    Machine,
    Pod,
    project_label,
    read_machine,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import PYTORCH_JOBS, PYTORCH_KIND
from runai.hub_service.clusters.kubernetes.objects.volume_topology import (
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
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WITHOUT = "PyTorchJobs are not scheduled (runai doctor names what the service may not do)"
"""What a role that is older than the service, or narrower than the chart's, comes to."""


class Changes:
    """Notifies the scheduling cycle, and callers that wait for a record, of changes."""

    def __init__(self) -> None:
        """Begin unchanged."""
        self.unseen = asyncio.Event()
        """Set while there is a change that no snapshot shows yet."""
        self.next = asyncio.Event()
        """Set at the next change of a record; another one then takes its place."""

    def signal(self) -> None:
        """Wake the scheduling cycle, and everybody else."""
        self.unseen.set()
        self.announce()

    def announce(self) -> None:
        """Wake everybody who waits for the next change of a record."""
        self.next.set()
        self.next = asyncio.Event()

    def requeue(self) -> None:
        """Run a cycle in a moment, whether or not a watch says that anything has changed."""
        asyncio.get_running_loop().call_later(TRIES_AGAIN_IN_S, self.unseen.set)


class Informers:
    """The objects of one cluster, each kind as its watch shows it."""

    def __init__(self, api: Api, changes: Changes, pool: Pool) -> None:
        """Look at nothing yet: `run` does."""
        self._changes = changes
        notice = changes.signal
        self.pods: Mirror[Pod] = Mirror(
            api,
            "/api/v1/pods",
            pool.read_pod,
            notice,
            # Of thousands of pods one or the other comes up at any moment: nobody decides by it.
            is_detail=_is_detail,
            on_detail=changes.announce,
        )
        self.machines: Mirror[Machine] = Mirror(
            api, "/api/v1/nodes", read_machine, notice, labelSelector=pool.selector
        )
        self.jobs = Jobs(api, notice, pool)
        self.namespaces: Mirror[str] = Mirror(api, "/api/v1/namespaces", _project_of, notice)
        self.projects: Mirror[ProjectRecord] = Mirror(
            api,
            project_objects.PROJECTS,
            project_objects.read_project,
            notice,
            labelSelector=pool.selector,
        )
        self._claims: Mirror[Claim] = Mirror(
            api, "/api/v1/persistentvolumeclaims", read_claim, notice
        )
        self._volumes: Mirror[Volume] = Mirror(api, VOLUMES, read_volume, notice)
        self._classes: Mirror[StorageClass] = Mirror(
            api, "/apis/storage.k8s.io/v1/storageclasses", read_class, notice
        )
        self._all: tuple[Mirror[Any] | Jobs, ...] = (
            self.pods,
            self.machines,
            self.jobs,
            self.namespaces,
            self.projects,
            self._claims,
            self._volumes,
            self._classes,
        )

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled; call once."""
        async with asyncio.TaskGroup() as following:
            for mirror in self._all:
                following.create_task(mirror.run())
        raise AssertionError("mirrors run for ever")

    async def listed(self) -> None:
        """Return when all that is there has been read once."""
        for mirror in self._all:
            await mirror.listed()

    def take_state(self, found: Object) -> None:
        """Note a Job on which we wrote who trains: nobody decides by it, its workers wait."""
        self.jobs.take(found, quietly=True)
        self._changes.announce()

    @property
    def storage(self) -> Storage:
        """Return the volumes, and how more of them are made."""
        return Storage(self._claims.objects, self._volumes.objects, self._classes.objects)


class Jobs:
    """All Jobs and PyTorchJobs of a pool."""

    def __init__(self, api: Api, on_change: Callable[[], None], pool: Pool) -> None:
        """Begin empty."""
        self._on_change = on_change
        self._jobs: Mirror[Job] = Mirror(api, "/apis/batch/v1/jobs", pool.read_job, on_change)
        self._pytorch: Mirror[Job] = Mirror(
            api, PYTORCH_JOBS, pool.read_pytorch_job, on_change, without=WITHOUT
        )
        self._kinds: Mirror[bool] = Mirror(
            api,
            KINDS,
            _is_served,
            self._look,
            without=WITHOUT,
            fieldSelector=f"metadata.name={PYTORCH_KIND}",
        )
        self._looked = asyncio.Event()

    def by_uid(self) -> dict[str, Job]:
        """Return those that there are."""
        jobs = {job.uid: job for job in self._jobs.objects.values()}
        if self._is_installed:
            jobs |= {job.uid: job for job in self._pytorch.objects.values()}
        return jobs

    def find(self, namespace: str, name: str) -> Job | None:
        """Return the batch Job of that name."""
        return self._jobs.objects.get(f"{namespace}/{name}")

    async def listed(self) -> None:
        """Return when all that is there has been read once."""
        await self._jobs.listed()
        await self._kinds.listed()
        if self._is_installed:
            await self._pytorch.listed()

    def take(self, found: Object, *, quietly: bool = False) -> None:
        """Note a Job as an answer shows it."""
        mirror = self._pytorch if found["kind"] == PYTORCH_JOB else self._jobs
        mirror.take(found, quietly=quietly)

    def drop(self, job: Job) -> None:
        """Note that a Job is gone, before its watch does."""
        mirror = self._pytorch if job.kind == PYTORCH_JOB else self._jobs
        mirror.drop(f"{job.namespace}/{job.name}", job.uid)

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as following:
            following.create_task(self._jobs.run())
            following.create_task(self._kinds.run())
            following.create_task(self._follow_pytorch())
        raise AssertionError("mirrors run for ever")

    @property
    def _is_installed(self) -> bool:
        served: Mapping[str, bool] = self._kinds.objects
        return served.get(PYTORCH_KIND, False)

    def _look(self) -> None:
        self._looked.set()
        self._on_change()

    async def _follow_pytorch(self) -> NoReturn:
        """Follow PyTorchJobs for as long as there is such a kind, however often it comes."""
        while True:
            await self._until(installed=True)
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._pytorch.run())
                await self._until(installed=False)
                following.cancel()
            self._pytorch.forget()

    async def _until(self, *, installed: bool) -> None:
        while self._is_installed is not installed:
            self._looked.clear()
            await self._looked.wait()


def _is_served(kind: Object) -> bool:
    """Tell whether a kind is served: some moments after it is made, until it is being deleted."""
    conditions = kind.get("status", {}).get("conditions") or ()
    said = {c["type"]: c["status"] for c in conditions}
    return said.get("Established") == "True" and "deletionTimestamp" not in kind["metadata"]


def _is_detail(before: Pod, now: Pod) -> bool:
    """Tell whether a pod has only come up."""
    return not now.is_elastic and replace(before, is_up=now.is_up, address=now.address) == now


def _project_of(namespace: Object) -> str:
    return project_label(namespace["metadata"].get("labels", {}))
