"""Checks of decisions against the current state, before a cluster carries them out.

A plan made from an older snapshot can thus never overfill a device (P3), nor start a gang below its
minimum (P4). Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runai.hub_service.clusters.states.resize import incoming_devices
from runai.hub_service.clusters.states.stored_workload import ACTIVE, StoredWorkload
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.records import WorkloadSpec, WorkloadState
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, memory_of_fraction
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Reserve, Resize, Start


@dataclass(slots=True)
class CapacityUse:
    """Use of each device by workers, by node and device number."""

    milli: dict[tuple[str, int], int] = field(default_factory=dict)
    mib: dict[tuple[str, int], int] = field(default_factory=dict)
    by_memory: dict[tuple[str, int], int] = field(default_factory=dict)
    """Number of shares of a device that were requested in MiB."""
    capacities: Mapping[str, NodeCapacity] = field(default_factory=dict)
    cpu_milli: Counter[str] = field(default_factory=Counter)
    memory_mib: Counter[str] = field(default_factory=Counter)
    """By node, as `cpu_milli`."""

    def book_cpu_and_memory(self, spec: WorkloadSpec, node: str, sign: int = 1) -> None:
        """Add a worker's CPU and memory; subtract them with sign -1."""
        self.cpu_milli[node] += sign * spec.cpu_milli
        self.memory_mib[node] += sign * spec.memory_mib

    def lacks(self, spec: WorkloadSpec, node: str) -> str:
        """Return what a node has too little of for the booked workers, "" if nothing.

        Nothing holds back a worker that requests none, although a smaller setting may have left
        the node with less than runs on it.
        """
        has = self.capacities.get(node, NodeCapacity())
        if spec.cpu_milli and has.cpu_milli is not None and self.cpu_milli[node] > has.cpu_milli:
            return "CPU"
        full = has.memory_mib is not None and self.memory_mib[node] > has.memory_mib
        return "memory" if spec.memory_mib and full else ""

    def book(
        self, spec: WorkloadSpec, node: str, shares: Iterable[DeviceShare], mib: int, sign: int = 1
    ) -> None:
        """Add a worker's shares of devices of `mib` MiB each; subtract them with sign -1."""
        for share in shares:
            at = (node, share.device)
            part = spec.gpu_memory_mib or memory_of_fraction(share.gpus, mib)
            self.milli[at] = self.milli.get(at, 0) + sign * share.gpus
            self.mib[at] = self.mib.get(at, 0) + sign * part
            self.by_memory[at] = self.by_memory.get(at, 0) + sign * bool(spec.gpu_memory_mib)

    def overfilled(self, node: str, shares: Iterable[DeviceShare], mib: int) -> int | None:
        """Return the first of these devices that is over its capacity, if any."""
        for share in shares:
            at = (node, share.device)
            over = self.mib[at] > mib if self.by_memory[at] else self.milli[at] > WHOLE_GPU
            if over:
                return share.device
        return None


WITHOUT_GPU = 1000
"""Elements of an array without GPUs that may start in one cycle, on a node without a bound."""


def slots(
    spec: WorkloadSpec,
    nodes: Mapping[str, Sequence[Device]],
    capacities: Mapping[str, NodeCapacity],
) -> int:
    """Return an upper bound of the workloads with this request that the nodes could hold.

    One more requests more than all devices, so that fair shares are those of any larger number:
    rests of devices count too, and memory as its part of the largest device.
    """
    devices = [device for found in nodes.values() for device in found]
    if spec.gpu_memory_mib:
        largest = max((device.memory_mib for device in devices), default=0)
        many = largest * len(devices) // spec.gpu_memory_mib
    elif spec.gpus:
        many = WHOLE_GPU * len(devices) // spec.gpus
    else:
        many = sum(_without_gpu(spec, capacities.get(name, NodeCapacity())) for name in nodes)
    return many // spec.min_workers


def _without_gpu(spec: WorkloadSpec, has: NodeCapacity) -> int:
    """Return how many workers without a GPU one node could hold."""
    many = WITHOUT_GPU
    if spec.cpu_milli and has.cpu_milli is not None:
        many = min(many, has.cpu_milli // spec.cpu_milli)
    if spec.memory_mib and has.memory_mib is not None:
        many = min(many, has.memory_mib // spec.memory_mib)
    return many


def sum_capacity_use(
    rows: Iterable[StoredWorkload],
    nodes: Mapping[str, Sequence[Device]],
    capacities: Mapping[str, NodeCapacity],
) -> CapacityUse:
    """Sum what starting, running and stopping workers hold, and their pending resizes."""
    capacity_use = CapacityUse(capacities=capacities)
    memory = {name: device_memory(devices) for name, devices in nodes.items()}
    for row in rows:
        for worker in row.record.workers:
            if worker.state in ACTIVE:
                capacity_use.book_cpu_and_memory(row.spec, worker.node)
            if worker.state in ACTIVE and worker.devices:
                mib = memory.get(worker.node, 0)
                capacity_use.book(
                    row.spec, worker.node, (*worker.devices, *incoming_devices(row)), mib
                )
    return capacity_use


def refusal_of_gang(row: StoredWorkload, starts: Sequence[Start]) -> str:
    """Return why workers cannot start together, or "" (P4: at least the minimum, or none)."""
    record = row.record
    if record.state.finished or record.state in {WorkloadState.SUSPENDED, WorkloadState.RETRYING}:
        return f"{row.id} is {record.state}"
    if row.intent != "run" or row.halt or record.state is WorkloadState.STOPPING:
        return f"{row.id} is being stopped"
    names = {worker.name for worker in record.workers}
    for start in starts:
        if start.worker not in names:
            return f"{row.id} has no worker {start.worker}"
    up = {worker.name for worker in row.active} | {start.worker for start in starts}
    unfinished = sum(worker.state != "finished" for worker in record.workers)
    min_workers = min(row.spec.min_workers, unfinished)
    if len(up) < min_workers:
        return f"{row.id} needs {min_workers} workers at once, the plan starts {len(up)}"
    return ""


def refusal_of_place(
    spec: WorkloadSpec,
    decisions: Sequence[Start | Reserve | Resize],
    nodes: Mapping[str, Sequence[Device]],
    capacity_use: CapacityUse | None = None,
) -> str:
    """Return why these devices cannot be granted, or ""; then add them all to `capacity_use`."""
    booked: list[tuple[Start | Reserve | Resize, int]] = []
    refusal = ""
    for decision in decisions:
        refusal = _no_such_place(decision, nodes)
        if refusal:
            break
        if capacity_use is None:
            continue
        mib = device_memory(nodes[decision.node])
        capacity_use.book(spec, decision.node, decision.devices, mib)
        if isinstance(decision, Start):
            capacity_use.book_cpu_and_memory(spec, decision.node)
        booked.append((decision, mib))
        if (full := capacity_use.overfilled(decision.node, decision.devices, mib)) is not None:
            refusal = f"device {full} of {decision.node} has no room for it"
            break
        if isinstance(decision, Start) and (what := capacity_use.lacks(spec, decision.node)):
            refusal = f"{decision.node} has too little {what} for it"
            break
    if refusal and capacity_use is not None:
        for decision, mib in booked:
            capacity_use.book(spec, decision.node, decision.devices, mib, sign=-1)
            if isinstance(decision, Start):
                capacity_use.book_cpu_and_memory(spec, decision.node, sign=-1)
    return refusal


def _no_such_place(
    decision: Start | Reserve | Resize, nodes: Mapping[str, Sequence[Device]]
) -> str:
    devices = nodes.get(decision.node)
    if devices is None:
        return f"there is no node {decision.node}"
    missing = [s.device for s in decision.devices if not 0 <= s.device < len(devices)]
    if missing:
        return f"node {decision.node} has no device {missing[0]}"
    broken = [devices[s.device] for s in decision.devices if devices[s.device].fault]
    if broken:
        return f"device {broken[0].index} of {decision.node} is broken: {broken[0].fault}"
    return ""


def device_memory(devices: Sequence[Device]) -> int:
    """Return the memory of a node's smallest device, which the scheduler assumes for all."""
    # A device that did not answer at discovery has no memory, and is not used.
    return min((device.memory_mib for device in devices if device.memory_mib), default=0)
