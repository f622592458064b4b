"""Lookup of workloads: their records, and the Job or pod behind each."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import is_not

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import ChangeSignals
from runai.hub_service.clusters.kubernetes.objects.array_elements import array_jobs
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.workloads.agent_allocations import AllocationBuilder
from runai.hub_service.clusters.kubernetes.workloads.array_records import (
    ArrayRecords,
    arrays_of,
    element_of,
)
from runai.hub_service.clusters.kubernetes.workloads.workload_records import (
    ClusterState,
    RecordBuilder,
)
from runai.hub_service.clusters.states.identity import refuse_other
from runai.hub_service.clusters.states.user_actions import refusal_of_whole_array
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.model import arrays
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import Allocation, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import Conflict, NotFound


def _age(record: WorkloadRecord) -> tuple[float, WorkloadId, int]:
    index = record.spec.array_index
    return record.submitted, arrays.array_id(record), -1 if index is None else index


class _UsedIds(Container[str]):
    """The IDs in use, of workloads, whole arrays and their elements."""

    def __init__(self, lookup: "WorkloadLookup") -> None:
        self._lookup = lookup

    def __contains__(self, workload: object) -> bool:
        return isinstance(workload, str) and self._lookup.find(workload) is not None


class WorkloadLookup:
    """Workloads of one cluster; records are built once between two changes."""

    def __init__(self, cache: Cache, changes: ChangeSignals) -> None:
        """Begin with no record built."""
        self._cache = cache
        self._changes = changes
        self._record_builder, self._allocation_builder = RecordBuilder(), AllocationBuilder()
        self._arrays = ArrayRecords()
        self._records: dict[WorkloadId, WorkloadRecord] = {}
        self._log = ChangeLog()
        self._records_by_array: Mapping[WorkloadId, Sequence[WorkloadRecord]] = {}
        self._names = _UsedIds(self)
        self._allocations: Mapping[str, Sequence[Allocation]] = {}
        self._holders: Mapping[WorkloadId, WorkloadRecord] = {}
        self._built_at: asyncio.Event | None = None  # set at the next change after the build

    async def records(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return all workloads by ID, oldest first."""
        await self._cache.informers.listed()
        if self._built_at is not self._changes.next:  # many calls come between two changes
            cluster_state = self._cache.state()
            before, self._records = self._records, self._build(cluster_state)
            self._built_at = self._changes.next
            self._log_changes(before)
            self._records_by_array = arrays_of(self._records)
            self._allocations = self._allocation_builder.allocations_by_node(cluster_state)
            self._holders = {w: r for w, r in self._records.items() if r.has_devices}
        return self._records

    def _log_changes(self, before: Mapping[WorkloadId, WorkloadRecord]) -> None:
        """Log the differences to the build before; an equal record stays the same object."""
        for workload in before.keys() - self._records.keys():
            self._log.add_removal(workload)
        is_new_object = map(is_not, map(before.get, self._records), self._records.values())
        for workload, record in list(compress(self._records.items(), is_new_object)):
            known = before.get(workload)
            if known == record:
                self._records[workload] = known
                continue
            if known is not None and known.uid != record.uid:
                self._log.add_removal(workload)
            self._log.add_change(workload)

    def _build(self, cluster_state: ClusterState) -> dict[WorkloadId, WorkloadRecord]:
        """Build the records of all workloads, arrays among them by age."""
        records = self._record_builder.records(cluster_state)
        self._arrays.begin()
        jobs = array_jobs(cluster_state.pods, cluster_state.jobs, finished=True)
        if not jobs:
            return records
        of_arrays = (r for array in jobs.values() for r in self._arrays.of(array, cluster_state))
        by_age = sorted([*records.values(), *of_arrays], key=_age)
        return {record.id: record for record in by_age}

    def find(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return the record of a workload, of a whole array or of an element, by the last build."""
        if records := self._records_by_array.get(workload):
            waiting = self._records.get(workload)  # one record of all elements that never ran
            return arrays.whole(waiting, [record for record in records if record is not waiting])
        if (record := self._records.get(workload)) is not None:
            return record
        array, index = arrays.split_id(workload) or ("", 0)
        waiting = self._records.get(array)
        return element_of(waiting, index) if waiting and arrays.has(waiting.left, index) else None

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, oldest first."""
        return list((await self.records()).values())

    async def changes(self, since: int | None) -> WorkloadChanges:
        """Return the changes of workloads since a version; None: all workloads."""
        records = await self.records()
        return self._log.since(since, records, lambda workload: _age(records[workload]))

    async def names(self) -> Container[WorkloadId]:
        """Return the workload IDs in use."""
        await self.records()
        return self._names

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices."""
        await self.records()
        return self._holders

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload, or raise NotFound."""
        await self.records()
        if (found := self.find(workload)) is not None:
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
        return self._allocations.get(node, ())

    async def single_workload(self, workload: WorkloadId, uid: str = "") -> WorkloadRecord:
        """Return one workload that is no whole array.

        Raises:
            Conflict: it is a whole array, or its uid is not the given non-empty one.
        """
        record = await self.workload_with_uid(workload, uid)
        if record.spec.is_array:
            raise refusal_of_whole_array(record)
        return record

    def element(self, workload: WorkloadId) -> tuple[Job, int] | None:
        """Return an element's array and its index; None: the workload is no element."""
        if (named := arrays.split_id(workload)) is None:
            return None
        array, index = named
        for job in self._cache.informers.jobs.by_uid().values():
            if job.is_array and index < job.completions and self._cache.id_of(job) == array:
                return job, index
        return None

    async def subject(self, workload: WorkloadId) -> Job | Pod:
        """Return the Job or the pod of a workload; of an element its last pod, or the array's Job.

        Its uid is the record's: a pod may be called like a Job.

        Raises:
            NotFound: the workload has neither.
        """
        if (element := self.element(workload)) is not None:
            pods = await self.pods_of(workload)
            return max(pods, key=lambda pod: (pod.created, pod.name), default=element[0])
        record = await self.workload(workload)
        if (job := self._cache.informers.jobs.by_uid().get(record.uid)) is not None:
            return job
        for pod in self._cache.pods():
            if pod.uid == record.uid:
                return pod
        raise NotFound(f"There is no workload {workload}.")

    async def workload_with_uid(self, workload: WorkloadId, uid: str) -> WorkloadRecord:
        """Return one workload.

        Raises:
            Conflict: its uid is not the given non-empty one.
        """
        record = await self.workload(workload)
        refuse_other(record, uid)
        return record

    async def job(self, workload: WorkloadId, verb: str, uid: str = "") -> Job:
        """Return the Job of a workload for a change; `verb` names the change in errors.

        Raises:
            Conflict: the workload is a session, finished or being deleted, or not that of the uid.
        """
        record = await self.workload_with_uid(workload, uid)
        if (element := self.element(workload)) is not None:
            array = element[0].name if element[0].spec is None else element[0].spec.name
            raise Conflict(
                f"{workload} is an element of an array, and cannot be {verb} by itself.",
                hint=f"Name the array, {array}: all of it is {verb}. An element can be deleted.",
                code="in_array",
            )
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
                hint="Submit it again. Under another name, this one and its checkpoints stay.",
                code="finished",
            )
        if subject.deleted is not None:
            raise Conflict(
                f"{workload} is being deleted and cannot be {verb}.",
                hint="Submit it again when it is gone.",
                code="being_deleted",
            )
        return subject

    async def pods_of(self, workload: WorkloadId, uid: str = "") -> list[Pod]:
        """Return the pods of a workload; an element's has the index of its only worker, 0.

        Raises:
            Conflict: it is a whole array, or another one than that of a non-empty uid.
        """
        if (element := self.element(workload)) is not None:
            if uid:
                await self.workload_with_uid(workload, uid)
            job, index = element
            return [replace(pod, index=0) for pod in self.pods_of_job(job) if pod.index == index]
        await self.single_workload(workload, uid)
        subject = await self.subject(workload)
        return [subject] if isinstance(subject, Pod) else self.pods_of_job(subject)

    def pods_of_job(self, job: Job) -> list[Pod]:
        """Return the cached pods that a Job owns."""
        return [p for p in self._cache.pods() if p.owner is not None and p.owner.uid == job.uid]
