"""Jobs of every kind that the API server may have, those too that are installed later.

A kind of somebody else's is followed while its CustomResourceDefinition says that it is served, and
that is watched: where there is none nothing is asked again and again, and nobody has to restart us
when there is. Owned by `scheduling`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, Object
from runai.hub_service.clusters.kubernetes.informers.informer import Mirror
from runai.hub_service.clusters.kubernetes.informers.node_pool import Pool
from runai.hub_service.clusters.kubernetes.objects.core_objects import PYTORCH_JOB
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import PYTORCH_JOBS, PYTORCH_KIND

KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WITHOUT = "PyTorchJobs are not scheduled (runai doctor names what the service may not do)"
"""What a role that is older than the service, or narrower than the chart's, comes to."""


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
