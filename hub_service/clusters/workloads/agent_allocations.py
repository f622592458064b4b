"""Cache of each node's allocations, for its agent.

Agents ask each second, for hundreds of workers of which few have changed. A worker's allocation is
rebuilt only if its record or the node's devices are another object: both are frozen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.clusters.workloads.worker_environment import allocation
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import Allocation, Process, WorkloadId, WorkloadRecord


@dataclass(slots=True)
class _OfNode:
    """Allocations of one node, with the devices and boot time they were built from."""

    devices: Sequence[Device] = ()
    booted: float | None = None
    of: dict[WorkloadId, tuple[WorkloadRecord, list[Allocation]]] = field(default_factory=dict)


class Allocations:
    """The last allocations of each node."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._nodes: dict[str, _OfNode] = {}

    def of(
        self,
        node: str,
        devices: Sequence[Device],
        rows: Iterable[StoredWorkload],
        *,
        booted: float | None = None,
        told: Callable[[Process], Process] = lambda process: process,
    ) -> list[Allocation]:
        """Return the running and stopping workers on a node; unchanged ones as the same object.

        `told` converts a process to the one the agent sees; its result is the same until `booted`
        changes.
        """
        before = self._nodes.get(node, _OfNode())
        is_same = before.devices is devices and before.booted == booted
        now = self._nodes[node] = _OfNode(devices, booted)
        for row in rows:
            record = row.record
            known = before.of.get(record.id) if is_same else None
            if known is None or known[0] is not record:
                known = record, _allocations(row, node, devices, told)
            if known[1]:
                now.of[record.id] = known
        return [one for _, drawn in now.of.values() for one in drawn]


def _allocations(
    row: StoredWorkload, node: str, devices: Sequence[Device], told: Callable[[Process], Process]
) -> list[Allocation]:
    found = [allocation(row.record, w, devices) for w in row.active if w.node == node]
    return [
        one if one.process is None else replace(one, process=told(one.process)) for one in found
    ]
