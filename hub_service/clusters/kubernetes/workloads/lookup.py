"""Lookup of workloads: their records, and the Job or pod behind each."""

import asyncio
from collections.abc import Container, Mapping, Sequence

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.informers.job_informers import Changes
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.workloads.agent_allocations import AllocationBuilder
from runai.hub_service.clusters.kubernetes.workloads.workload_records import RecordBuilder
from runai.hub_service.model.records import Allocation, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import Conflict, NotFound


class WorkloadLookup:
    """Workloads of one cluster; records are built once between two changes."""

    def __init__(self, cache: Cache, changes: Changes) -> None:
        """Begin with no record built."""
        self._cache = cache
        self._changes = changes
        self._showing, self._metering = RecordBuilder(), AllocationBuilder()
        self._records: Mapping[WorkloadId, WorkloadRecord] = {}
        self._held: Mapping[str, Sequence[Allocation]] = {}
        self._holders: Mapping[WorkloadId, WorkloadRecord] = {}
        self._built_at: asyncio.Event | None = None  # set at the next change after the build

    async def records(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return all workloads by ID, oldest first."""
        await self._cache.informers.listed()
        if self._built_at is not self._changes.next:  # many calls come between two changes
            known = self._cache.known()
            self._records, self._built_at = self._showing.records(known), self._changes.next
            self._held = self._metering.held_by_node(known)
            self._holders = {w: r for w, r in self._records.items() if r.holds_devices}
        return self._records

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, oldest first."""
        return list((await self.records()).values())

    async def names(self) -> Container[WorkloadId]:
        """Return the workload IDs in use."""
        return await self.records()

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices."""
        await self.records()
        return self._holders

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload, or raise NotFound."""
        if (found := (await self.records()).get(workload)) is not None:
            return found
        raise NotFound(
            f"There is no workload {workload}.", hint="runai list names those there are."
        )

    async def wait(self, workload: WorkloadId, seen: WorkloadRecord) -> WorkloadRecord:
        """Return the workload as soon as it differs from `seen`."""
        while True:
            change = self._changes.next
            if (record := await self.workload(workload)) != seen:
                return record
            await change.wait()

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return the device allocations of a node, by pod; programs enforce limits themselves."""
        await self.records()
        return self._held.get(node, ())

    async def subject(self, workload: WorkloadId) -> Job | Pod:
        """Return the Job or the pod of a workload.

        Raises:
            NotFound: the workload has neither.
        """
        everything: list[Job | Pod] = [
            *self._cache.informers.jobs.by_uid().values(),
            *self._cache.pods(),
        ]
        for found in everything:
            if self._cache.id_of(found) == workload:
                return found
        raise NotFound(f"There is no workload {workload}.")

    async def job(self, workload: WorkloadId, verb: str) -> Job:
        """Return the Job of a workload for a change; `verb` names the change in errors.

        Raises:
            Conflict: the workload is a session, finished or being deleted.
        """
        record = await self.workload(workload)
        subject = await self.subject(workload)
        if not isinstance(subject, Job):
            raise Conflict(
                f"{workload} is a session and cannot be {verb}.",
                hint="Stop it, or delete it.",
                code="is_a_session",
            )
        if record.state.finished:
            raise Conflict(
                f"{workload} is finished ({record.state}) and cannot be {verb}.",
                hint="Delete it and submit it again.",
                code="finished",
            )
        if subject.deleted is not None:
            raise Conflict(
                f"{workload} is being deleted and cannot be {verb}.",
                hint="Submit it again when it is gone.",
                code="being_deleted",
            )
        return subject

    async def pods_of(self, workload: WorkloadId) -> list[Pod]:
        """Return the pods of a workload."""
        subject = await self.subject(workload)
        if isinstance(subject, Pod):
            return [subject]
        return [
            pod
            for pod in self._cache.pods()
            if pod.owner is not None and pod.owner.uid == subject.uid
        ]
