"""Checks of decisions against the current state, before a cluster carries them out.

A plan made from an older snapshot can thus never overfill a device (P3), nor start a gang below its
minimum (P4). Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runai.hub_service.clusters.states.resize import incoming_devices
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.records import ACTIVE, WorkloadRecord, WorkloadSpec, WorkloadState
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

    def lacking_resource(self, spec: WorkloadSpec, node: str) -> str:
        """Return "CPU" or "memory" if a node has too little for the booked workers, else "".

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
            key = (node, share.device)
            share_mib = spec.gpu_memory_mib or memory_of_fraction(share.gpus, mib)
            self.milli[key] = self.milli.get(key, 0) + sign * share.gpus
            self.mib[key] = self.mib.get(key, 0) + sign * share_mib
            self.by_memory[key] = self.by_memory.get(key, 0) + sign * bool(spec.gpu_memory_mib)

    def overfilled(self, node: str, shares: Iterable[DeviceShare], mib: int) -> int | None:
        """Return the first of these devices that is over its capacity, if any."""
        for share in shares:
            key = (node, share.device)
            is_over = self.mib[key] > mib if self.by_memory[key] else self.milli[key] > WHOLE_GPU
            if is_over:
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

    With one workload more, the requests exceed all devices, so that fair shares are those of any
    larger number. So remainders of devices count too, and memory as part of the largest device.
    """
    devices = [device for node_devices in nodes.values() for device in node_devices]
    if spec.gpu_memory_mib:
        largest = max((device.memory_mib for device in devices), default=0)
        max_workers = largest * len(devices) // spec.gpu_memory_mib
    elif spec.gpus:
        max_workers = WHOLE_GPU * len(devices) // spec.gpus
    else:
        max_workers = sum(
            _workers_without_gpu(spec, capacities.get(name, NodeCapacity())) for name in nodes
        )
    return max_workers // spec.min_workers


def _workers_without_gpu(spec: WorkloadSpec, has: NodeCapacity) -> int:
    """Return how many workers without a GPU one node could hold."""
    max_workers = WITHOUT_GPU
    if spec.cpu_milli and has.cpu_milli is not None:
        max_workers = min(max_workers, has.cpu_milli // spec.cpu_milli)
    if spec.memory_mib and has.memory_mib is not None:
        max_workers = min(max_workers, has.memory_mib // spec.memory_mib)
    return max_workers


def sum_capacity_use(
    rows: Iterable[WorkloadRecord],
    nodes: Mapping[str, Sequence[Device]],
    capacities: Mapping[str, NodeCapacity],
) -> CapacityUse:
    """Sum what starting, running and stopping workers hold, and their pending resizes."""
    capacity_use = CapacityUse(capacities=capacities)
    memory = {name: device_memory(devices) for name, devices in nodes.items()}
    for row in rows:
        for worker in row.workers:
            if worker.state in ACTIVE:
                capacity_use.book_cpu_and_memory(row.spec, worker.node)
            if worker.state in ACTIVE and worker.devices:
                mib = memory.get(worker.node, 0)
                capacity_use.book(
                    row.spec, worker.node, (*worker.devices, *incoming_devices(row)), mib
                )
    return capacity_use


def refusal_of_gang(row: WorkloadRecord, starts: Sequence[Start]) -> str:
    """Return why workers cannot start together, or "" (P4: at least the minimum, or none)."""
    record = row
    if record.state.finished or record.state in {WorkloadState.SUSPENDED, WorkloadState.RETRYING}:
        return f"{row.id} is {record.state}"
    if row.intent != "run" or row.halt or record.state is WorkloadState.STOPPING:
        return f"{row.id} is being stopped"
    names = {worker.name for worker in record.workers}
    for start in starts:
        if start.worker not in names:
            return f"{row.id} has no worker {start.worker}"
    active = {worker.name for worker in row.active} | {start.worker for start in starts}
    unfinished = sum(worker.state != "finished" for worker in record.workers)
    min_workers = min(row.spec.min_workers, unfinished)
    if len(active) < min_workers:
        return f"{row.id} needs {min_workers} workers at once, the plan starts {len(active)}"
    return ""


def book_unless_refused(
    spec: WorkloadSpec,
    decisions: Sequence[Start | Reserve | Resize],
    nodes: Mapping[str, Sequence[Device]],
    capacity_use: CapacityUse | None = None,
) -> str:
    """Add the decisions' devices to `capacity_use`, all or none; return why none, or ""."""
    bookings: list[tuple[Start | Reserve | Resize, int]] = []
    refusal = ""
    for decision in decisions:
        refusal = _refusal_of_devices(decision, nodes)
        if refusal:
            break
        if capacity_use is None:
            continue
        mib = device_memory(nodes[decision.node])
        capacity_use.book(spec, decision.node, decision.devices, mib)
        if isinstance(decision, Start):
            capacity_use.book_cpu_and_memory(spec, decision.node)
        bookings.append((decision, mib))
        if (full := capacity_use.overfilled(decision.node, decision.devices, mib)) is not None:
            refusal = f"device {full} of {decision.node} has no room for it"
            break
        if isinstance(decision, Start) and (
            resource := capacity_use.lacking_resource(spec, decision.node)
        ):
            refusal = f"{decision.node} has too little {resource} for it"
            break
    if refusal and capacity_use is not None:
        for decision, mib in bookings:
            capacity_use.book(spec, decision.node, decision.devices, mib, sign=-1)
            if isinstance(decision, Start):
                capacity_use.book_cpu_and_memory(spec, decision.node, sign=-1)
    return refusal


def _refusal_of_devices(
    decision: Start | Reserve | Resize, nodes: Mapping[str, Sequence[Device]]
) -> str:
    """Return why a decision's devices do not exist or are broken, or ""."""
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
