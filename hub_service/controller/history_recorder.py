"""Recorder of allocations, requests and state changes in the ledger.

It runs after every cycle, so that allocated GPU-seconds are exact even without an agent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from runai.hub_service.ledger import DeviceAllocation, Ledger, PastRequest
from runai.hub_service.model.changes import Broadcast, compared, is_same_workload
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import WorkloadId, WorkloadRecord, WorkloadState
from runai.hub_service.model.request_codec import request_of
from runai.hub_service.scheduler.model.snapshot import Snapshot, WorkerState, Workload
from runai.hub_service.wire.errors import NotFound

RECORDS_AT_A_TIME, REQUESTS_AT_A_TIME = 1000, 25
"""Records and requests per batch between yields to the event loop; about 1 ms."""
QUICK_S = 0.01
PAUSE_FACTOR = 10
"""Pause after each run, as a multiple of its duration (0.02 s for thousands)."""


def device_allocations(
    workloads: Iterable[WorkloadRecord], devices: Mapping[str, Sequence[Device]]
) -> list[DeviceAllocation]:
    """Return all allocated device shares."""
    uuids = {
        (node, d.index): d.uuid for node, node_devices in devices.items() for d in node_devices
    }
    return [
        DeviceAllocation(
            record.spec.project,
            record.spec.user,
            record.id,
            uuids.get((worker.node, share.device), ""),
            share.gpus,
            worker.node,
        )
        for record in workloads
        if record.has_devices
        for worker in record.workers
        for share in worker.devices
    ]


class AllocationCache:
    """Cached list of allocations, for callers that read it every second."""

    def __init__(self, cluster: Cluster) -> None:
        """Start with an empty cache."""
        self._cluster = cluster
        self._last_inputs: tuple[object, object] = None, None
        self._allocations: Sequence[DeviceAllocation] = ()
        self._next_update_at = 0.0

    async def now(self) -> Sequence[DeviceAllocation]:
        """Return all allocated device shares.

        If thousands of allocations change many times a second, the list may be slightly outdated,
        as the ledger of `HistoryRecorder` then is.
        """
        holders, devices = await self._cluster.holders(), await self._cluster.devices()
        began = time.perf_counter()
        is_current = self._last_inputs[0] is holders and self._last_inputs[1] is devices
        if not is_current and began >= self._next_update_at:
            self._allocations = device_allocations(holders.values(), devices)
            self._last_inputs = holders, devices
            took = time.perf_counter() - began
            self._next_update_at = began + PAUSE_FACTOR * took if took > QUICK_S else 0.0
        return self._allocations


class HistoryRecorder:
    """Recorder that follows the cluster and writes its changes to the ledger."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        changes: Broadcast,
        clock: Callable[[], float] = time.time,
        *,
        last_snapshot: Callable[[], Snapshot] = Snapshot,
    ) -> None:
        """Follow `cluster`; `last_snapshot` returns the snapshot of the last cycle."""
        self._cluster = cluster
        self._ledger = ledger
        self._changes = changes
        self._clock = clock
        self._records: Sequence[WorkloadRecord] | None = None
        """Records of the last run; None before the first run."""
        self._states: dict[WorkloadId, WorkloadState] = {}
        self._last_snapshot = last_snapshot
        self._workloads: Sequence[Workload] = ()
        self._workloads_by_name: dict[WorkloadId, Workload] = {}
        self._requests: dict[WorkloadId, PastRequest] = {}
        """Requests as last written."""

    async def run(self) -> NoReturn:
        """Write every change, forever; combine several changes if a run takes long."""
        while True:
            version = self._changes.version
            took = await self.record_changes()
            await self._changes.newer_than(version)
            # Pause after a change and not before it, so that the next scheduling cycle runs first.
            await asyncio.sleep(PAUSE_FACTOR * took)

    async def record_changes(self) -> float:
        """Write the current allocations, and the state changes since the last run.

        Return the duration of the run in seconds.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        # Read before the cluster, because agent reports add new workloads to the ledger meanwhile.
        recorded = set(self._ledger.workloads())
        records = await self._cluster.workloads()
        holders = await self._cluster.holders()
        allocations = device_allocations(holders.values(), await self._cluster.devices())
        self._ledger.record(self._clock(), 0.0, allocations)
        # Changes before the first run are in the cluster's own history. Workloads that ended
        # meanwhile, or just before a crash, are still in the ledger; so are workloads that came and
        # went between two runs, if an agent reported them.
        is_first, before = self._records is None, self._records or ()
        differences = compared(before, records, is_same_workload)
        removed_ids = [before[place].id for place in differences.removed]
        states = {name: self._states.pop(name) for name in removed_ids if name in self._states}
        changed_records = differences.changed_or_added(records)
        for place, record in enumerate(changed_records):
            if place % RECORDS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            name, state = record.id, record.state
            known = self._states.get(name, states.get(name))
            self._states[name] = state
            if known is not state and not is_first:
                self._ledger.event(
                    name,
                    state.value,
                    record.reason.text if record.reason else "",
                    project=record.spec.project,
                    user=record.spec.user,
                )
        for removed in (recorded | states.keys()) - self._states.keys():
            self._ledger.event(removed, "deleted", "")
            self._ledger.forget(removed)
        self._records = records
        await self._record_requests({record.id: record for record in changed_records})
        return clock() - began

    async def _record_requests(self, changed: Mapping[WorkloadId, WorkloadRecord]) -> None:
        """Write the requests of new and changed workloads."""
        before, self._workloads = self._workloads, self._last_snapshot().workloads
        differences = compared(before, self._workloads, _has_same_name)
        for index in differences.removed:
            self._workloads_by_name.pop(before[index].name, None)
            self._requests.pop(before[index].name, None)
        changed_workloads = {w.name: w for w in differences.changed_or_added(self._workloads)}
        self._workloads_by_name |= changed_workloads
        for place, name in enumerate({**changed_workloads, **changed}):
            if place % REQUESTS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            workload, record = (
                self._workloads_by_name.get(name),
                await self._find_record(name, changed),
            )
            if record is None or workload is None:
                continue
            known = self._requests.get(name)
            is_started_again = known is None or known.starts != record.attempts
            if name not in changed_workloads and not is_started_again:
                continue  # only its queue position changed, not its request
            request = _past_request(workload, record, "" if known is None else known.text)
            if request != known:
                self._ledger.record_request(name, request)
                self._requests[name] = request

    async def _find_record(
        self, name: WorkloadId, changed: Mapping[WorkloadId, WorkloadRecord]
    ) -> WorkloadRecord | None:
        """Return a workload's record; None if it is gone or not recorded yet."""
        if name not in self._states:
            return None
        with suppress(NotFound):
            return changed.get(name) or await self._cluster.workload(name)
        return None


def _has_same_name(one: Workload, other: Workload) -> bool:
    return one.name == other.name


def _past_request(workload: Workload, record: WorkloadRecord, known: str) -> PastRequest:
    """Return a workload's request as the ledger has it; `known` is the text last written."""
    if workload.max_runtime is not None:  # what is left of its time
        workload = replace(workload, max_runtime=record.spec.max_runtime)
    text = request_of(workload) if _is_complete(workload, record, known) else known
    return PastRequest(workload.submitted, text, record.attempts)


def _is_complete(workload: Workload, record: WorkloadRecord, known: str) -> bool:
    """Return True if the workload's whole request is visible, not while parts are stopping.

    The part of an elastic job beyond its minimum may never be seen as a whole on Kubernetes. If no
    request was written yet, the visible part is written.
    """
    is_terminating = any(worker.state is WorkerState.STOPPING for worker in workload.workers)
    is_all = len(workload.workers) == len(record.workers) and record.released is None
    return is_all or not (known or is_terminating)
