"""Cache of each node's allocations, for its agent.

Agents ask each second, for hundreds of workers of which few have changed. A worker's allocation is
rebuilt only if its record or the node's devices are another object: both are frozen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from runai.hub_service.clusters.states.stored_workload import StoredWorkload
from runai.hub_service.clusters.workloads.worker_environment import allocation
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import Allocation, Process, WorkloadId, WorkloadRecord


@dataclass(slots=True)
class _NodeAllocations:
    """Allocations of one node, with the devices and boot time they were built from."""

    devices: Sequence[Device] = ()
    booted: float | None = None
    by_workload: dict[WorkloadId, tuple[WorkloadRecord, list[Allocation]]] = field(
        default_factory=dict
    )


class AgentAllocations:
    """The last allocations of each node."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._nodes: dict[str, _NodeAllocations] = {}

    def of(
        self,
        node: str,
        devices: Sequence[Device],
        rows: Iterable[StoredWorkload],
        *,
        booted: float | None = None,
        convert: Callable[[Process], Process] = lambda process: process,
    ) -> list[Allocation]:
        """Return the running and stopping workers on a node; unchanged ones as the same object.

        `convert` maps a process to the one the agent sees; its result is the same until `booted`
        changes.
        """
        before = self._nodes.get(node, _NodeAllocations())
        is_same = before.devices is devices and before.booted == booted
        now = self._nodes[node] = _NodeAllocations(devices, booted)
        for row in rows:
            record = row.record
            known = before.by_workload.get(record.id) if is_same else None
            if known is None or known[0] is not record:
                known = record, _allocations(row, node, devices, convert)
            if known[1]:
                now.by_workload[record.id] = known
        return [entry for _, allocations in now.by_workload.values() for entry in allocations]


def _allocations(
    row: StoredWorkload, node: str, devices: Sequence[Device], convert: Callable[[Process], Process]
) -> list[Allocation]:
    allocations = [allocation(row.record, w, devices) for w in row.active if w.node == node]
    return [
        entry if entry.process is None else replace(entry, process=convert(entry.process))
        for entry in allocations
    ]
