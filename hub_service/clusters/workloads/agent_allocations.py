"""Cache of each node's allocations, for its agent.

Agents ask each second, for hundreds of workers of which few have changed. A worker's allocation is
rebuilt only if its record or the node's devices are another object: both are frozen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

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

    def on_node(
        self,
        node: str,
        devices: Sequence[Device],
        rows: Iterable[WorkloadRecord],
        *,
        booted: float | None = None,
        convert: Callable[[Process], Process] = lambda process: process,
    ) -> list[Allocation]:
        """Return the allocations of running and stopping workers on a node.

        Unchanged ones are the same objects as before. `convert` maps a process to the one the
        agent sees; its result is the same until `booted` changes.
        """
        previous = self._nodes.get(node, _NodeAllocations())
        is_unchanged = previous.devices is devices and previous.booted == booted
        current = self._nodes[node] = _NodeAllocations(devices, booted)
        for row in rows:
            cached = previous.by_workload.get(row.id) if is_unchanged else None
            if cached is None or cached[0] is not row:
                cached = row, _allocations(row, node, devices, convert)
            if cached[1]:
                current.by_workload[row.id] = cached
        return [entry for _, allocations in current.by_workload.values() for entry in allocations]


def _allocations(
    row: WorkloadRecord, node: str, devices: Sequence[Device], convert: Callable[[Process], Process]
) -> list[Allocation]:
    """Return the allocations of a row's workers on one node, with `convert` of their processes."""
    allocations = [allocation(row, w, devices) for w in row.active if w.node == node]
    return [
        entry if entry.process is None else replace(entry, process=convert(entry.process))
        for entry in allocations
    ]
