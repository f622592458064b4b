"""Recorder of allocations, requests and state changes in the ledger.

It runs after every cycle, so that allocated GPU-seconds are exact even without an agent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from runai.hub_service.clusters.states.user_actions import submitted
from runai.hub_service.clusters.workloads.snapshot_builder import workload_for_core
from runai.hub_service.ledger import DeviceAllocation, Ledger, PastRequest
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ElasticRules, WorkloadId, WorkloadRecord, WorkloadState
from runai.hub_service.model.request_codec import request_of

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
        elastic: ElasticRules | None = None,
    ) -> None:
        """Follow `cluster`; `elastic` are its rules for elastic jobs."""
        self._cluster = cluster
        self._ledger = ledger
        self._changes = changes
        self._clock = clock
        self._version: int | None = None
        """Version of the workloads at the last run; None before the first run."""
        self._states: dict[WorkloadId, WorkloadState] = {}
        self._elastic = elastic
        self._written: dict[WorkloadId, tuple[object, ...]] = {}
        """Inputs of each request, as last written."""

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
        changes = await self._cluster.changes(self._version)
        holders = await self._cluster.holders()
        allocations = device_allocations(holders.values(), await self._cluster.devices())
        self._ledger.record(self._clock(), 0.0, allocations)
        # Changes before the first run are in the cluster's own history. Workloads that ended
        # meanwhile, or just before a crash, are still in the ledger; so are workloads that came and
        # went between two runs, if an agent reported them.
        is_first = self._version is None
        removed = list(self._states) if changes.is_all else changes.removed
        states = {name: self._states.pop(name) for name in removed if name in self._states}
        for name in removed:
            self._written.pop(name, None)
        for place, record in enumerate(changes.changed):
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
        for name in recorded | states.keys():
            if name not in self._states:
                self._ledger.event(name, "deleted", "")
                self._ledger.forget(name)
        self._version = changes.version
        # Of those that had finished before this service, the requests are written.
        await self._record_requests(
            r for r in changes.changed if not (is_first and r.state.finished)
        )
        return clock() - began

    async def _record_requests(self, changed: Iterable[WorkloadRecord]) -> None:
        """Write the requests of workloads with GPUs: others have no past to replay."""
        for place, record in enumerate(changed):
            if place % REQUESTS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            if not (record.attempts or record.has_devices):
                continue
            spec = record.spec
            parts = record.attempts, record.saves, spec.workers, spec.min_workers
            if parts == self._written.get(record.id):
                continue
            self._written[record.id] = parts
            if (request := _past_request(record, self._elastic)) is not None:
                self._ledger.record_request(record.id, request)


def _past_request(record: WorkloadRecord, elastic: ElasticRules | None) -> PastRequest | None:
    """Return a workload's request, as it was before its first start; None: a whole array's."""
    new = submitted(record.spec, now=record.submitted, checkpoint_dir="", log_dir="").row
    assert new is not None
    if (workload := workload_for_core(new, rules=elastic)) is None:
        return None
    # An elastic job is known to save its work once its workers report.
    text = request_of(replace(workload, saves=record.saves))
    return PastRequest(workload.submitted, text, record.attempts)
