"""Tell the ledger who holds what from when on, and what happened to whom.

Runs after every cycle, so allocated GPU-seconds are exact even without an agent. Knows records and
the ledger; changes nothing in the cluster. Owned by the composition root.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from runai.hub_service.agent.devices import Device
from runai.hub_service.broadcast import Broadcast
from runai.hub_service.clusters.base import Cluster
from runai.hub_service.clusters.records import WorkloadId, WorkloadRecord, WorkloadState
from runai.hub_service.ledger import Held, Ledger

__all__ = ["Bookkeeping", "held_devices"]

RESTS = 4
"""How much longer it rests than it works: thousands of workloads take a quarter of a second."""


def held_devices(
    workloads: Sequence[WorkloadRecord], devices: Mapping[str, Sequence[Device]]
) -> list[Held]:
    """Return every share of every device that somebody holds."""
    uuids = {(node, d.index): d.uuid for node, found in devices.items() for d in found}
    return [
        Held(
            record.spec.project,
            record.spec.user,
            record.id,
            uuids.get((worker.node, share.device), ""),
            share.gpus,
            worker.node,
        )
        for record in workloads
        for worker in record.workers
        for share in worker.devices
    ]


class Bookkeeping:
    """Follow the cluster and write down what it does."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        changes: Broadcast,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._changes = changes
        self._clock = clock
        self._states: dict[WorkloadId, WorkloadState] | None = None

    async def run(self) -> NoReturn:
        """Write down every change, for ever; where that takes long, several at once."""
        while True:
            version, began = self._changes.version, time.perf_counter()
            await self.write_down()
            await asyncio.sleep(RESTS * (time.perf_counter() - began))
            await self._changes.after(version)

    async def write_down(self) -> None:
        """Write down what is held now and what became of the workloads since the last time."""
        workloads = await self._cluster.workloads()
        held = held_devices(workloads, await self._cluster.devices())
        self._ledger.record(self._clock(), 0.0, held)
        states = {record.id: record.state for record in workloads}
        # What happened while nobody watched is in the cluster's own history.
        before = states if self._states is None else self._states
        for record in workloads:
            if before.get(record.id) is not record.state:
                self._ledger.event(
                    record.id,
                    record.state.value,
                    record.reason.text if record.reason else "",
                    project=record.spec.project,
                    user=record.spec.user,
                )
        for gone in before.keys() - states.keys():
            self._ledger.event(gone, "deleted", "")
            self._ledger.forget(gone)
        self._states = states
