"""Read model of the cluster at one instant: records, devices, shares and measurements."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

from runai.hub_service.api.views.device_holders import NO_HOLDERS, DeviceHolders
from runai.hub_service.api.views.latest_agent_reports import AgentReports
from runai.hub_service.api.views.view_cache import MeasurementTimes, ViewCache, was_begun
from runai.hub_service.api.views.workload_queues import (
    NO_QUEUES,
    WAITING,
    ProjectSums,
    Queues,
    sums_of,
)
from runai.hub_service.controller.idle.idle_watch import IdleNow
from runai.hub_service.controller.notifications import RecentNotifications
from runai.hub_service.ledger import Totals
from runai.hub_service.model import time_limits
from runai.hub_service.model.arrays import element_id
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import ProjectRecord, ProjectSpec, WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import ProjectShare, Snapshot, WorkerState
from runai.hub_service.wire.reports import ProcessSample


class DeviceState(NamedTuple):
    """One device with its holders, processes and measurements."""

    device: Device
    holders: DeviceHolders
    processes: Sequence[ProcessSample]
    measured: tuple[float | None, int | None] | None
    """Utilization and MiB in use; None: not measured."""
    mps: str | None
    other_accounts: frozenset[str]
    """Accounts of processes that belong to no holder of the device."""


class NodeResources(NamedTuple):
    """CPU and memory of a node (the bound of requests, and what running workloads have); loss."""

    cpus: float | None = None
    cpus_allocated: float = 0
    memory_mib: int | None = None
    memory_allocated_mib: int = 0
    loss: str = ""
    """Why it offers fewer GPUs than it has."""


_HOLDING = (WorkerState.RUNNING, WorkerState.STOPPING)


class Meter(Protocol):
    """Current measurements and totals of the ledger."""

    def current(self, workload: WorkloadId) -> tuple[float, int | None] | None:
        """Return GPUs kept busy and MiB used now; None if not measured."""

    def average(self, workload: WorkloadId) -> float | None:
        """Return GPUs kept busy, averaged over the time that the workload held any."""

    def totals(self, workload: WorkloadId) -> Totals:
        """Return a workload's totals; zero for one that was never measured."""

    def totals_since_open(
        self, kind: Literal["project", "node", "workload", "reclaimed"]
    ) -> Mapping[str, Totals]:
        """Return the totals since the service started, by name."""

    def reclaimed(self) -> float:
        """Return the idle GPU-seconds that went to other workloads, in the whole history."""

    def reported(self) -> Mapping[str, float]:
        """Return the time of each node's last measurement."""

    def last_active(self, uuid: str) -> float | None:
        """Return when a device was last busy; None if idle since the start."""

    def device(self, uuid: str) -> tuple[float | None, int | None] | None:
        """Return a device's utilization and used MiB now; None if not measured."""


@dataclass(frozen=True)
class ReadModel:
    """Read model of the cluster at one instant."""

    at: float
    workloads: Sequence[WorkloadRecord]
    projects: Mapping[str, ProjectRecord]
    devices: Mapping[str, Sequence[Device]]
    shares: Mapping[str, ProjectShare]
    meter: Meter
    agent_reports: AgentReports
    starts: Mapping[WorkloadId, ExpectedStart] = field(default_factory=dict)
    """Expected starts of waiting workloads, as far as forecast."""
    progress: Mapping[WorkloadId, Progress] = field(default_factory=dict)
    """Last progress that each job reported."""
    recent: RecentNotifications = field(default_factory=RecentNotifications)
    """Recent notifications of users."""
    former_members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Former members with workloads that still exist, by project."""
    view_cache: ViewCache = field(default_factory=ViewCache)
    """Cache of views."""
    queues: Queues = NO_QUEUES
    """The workloads in queue order, and those that do not wait."""
    idle: Callable[[WorkloadId], IdleNow | None] = lambda _workload: None
    """Idle state of a workload; None: it is not idle."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    """Observations of the last cycle."""

    @cached_property
    def node_resources(self) -> Mapping[str, NodeResources]:
        """Return CPU, memory and loss by node, as the last cycle counted them."""
        cpu, memory = Counter[str](), Counter[str]()
        for workload in self.snapshot.workloads:
            for worker in workload.workers:
                if worker.node and worker.state in _HOLDING:
                    cpu[worker.node] += worker.cpu_milli
                    memory[worker.node] += worker.memory_mib
        return {
            node.name: NodeResources(
                cpus=None if node.cpu_milli is None else node.cpu_milli / 1000,
                cpus_allocated=cpu[node.name] / 1000,
                memory_mib=node.memory_mib,
                memory_allocated_mib=memory[node.name],
                loss=node.loss,
            )
            for node in self.snapshot.nodes
        }

    def spec(self, project: str) -> ProjectSpec | None:
        """Return a project, if it still exists."""
        record = self.projects.get(project)
        return record.spec if record else None

    def start_of(self, record: WorkloadRecord) -> ExpectedStart | None:
        """Return when a workload that waits for GPUs is expected to start; else None."""
        workload = element_id(record.id, record.left[0][0]) if record.left else record.id
        waits = record.state in WAITING and not record.is_set_aside
        return self.starts.get(workload) if waits else None

    def view_inputs(self, record: WorkloadRecord) -> object:
        """Return a cache key: the view's inputs except record, start and measurements."""
        site = self.simulated, self.largest_device_mib
        if not was_begun(record):
            return site
        idle_now = self.idle(record.id)
        warns = time_limits.warns_at(record, self.spec(record.spec.project))
        allocated = [(w.node, share.device) for w in record.workers for share in w.devices]
        return (
            site,
            self.progress.get(record.id),
            idle_now and idle_now.content,
            warns,
            self.agent_reports.notice(self.at, record.id),
            [
                device and (device.uuid, device.name)
                for device in (self.device(*each) for each in allocated)
            ],
        )

    def measurement_times(self, record: WorkloadRecord) -> MeasurementTimes | None:
        """Return the time of a workload's measurements; None if it was never started."""
        if not was_begun(record):
            return None
        return MeasurementTimes(
            self.at, [self.agent_reports.reported_at(w.node) for w in record.workers]
        )

    @cached_property
    def largest_device_mib(self) -> int:
        """Return the memory of the largest device."""
        sizes = (device.memory_mib for devices in self.devices.values() for device in devices)
        return max(sizes, default=0)

    @cached_property
    def most_devices(self) -> int:
        """Return the number of devices of the largest node."""
        return max((len(devices) for devices in self.devices.values()), default=0)

    @cached_property
    def largest_by_type(self) -> Mapping[str, tuple[int, int]]:
        """Return the devices of each type's largest node, and the memory of its largest device.

        A node is of its first device's type, as the scheduler sees it.
        """
        sizes: dict[str, tuple[int, int]] = {}
        for devices in filter(None, self.devices.values()):
            most, largest = sizes.get(devices[0].name, (0, 0))
            mib = max(device.memory_mib for device in devices)
            sizes[devices[0].name] = max(most, len(devices)), max(largest, mib)
        return sizes

    @cached_property
    def largest_node(self) -> NodeCapacity:
        """Return the most CPU and memory that a node of the last cycle has; None: no bound."""
        nodes = self.snapshot.nodes
        cpu = [node.cpu_milli for node in nodes if node.cpu_milli is not None]
        memory = [node.memory_mib for node in nodes if node.memory_mib is not None]
        return NodeCapacity(
            max(cpu, default=None) if len(cpu) == len(nodes) else None,
            max(memory, default=None) if len(memory) == len(nodes) else None,
        )

    @cached_property
    def gpu_types(self) -> frozenset[str]:
        """Return the types of all devices."""
        return frozenset(d.name for devices in self.devices.values() for d in devices)

    @cached_property
    def capacity(self) -> MilliGpu:
        """Return the capacity of all nodes."""
        return MilliGpu(1000 * sum(len(devices) for devices in self.devices.values()))

    @cached_property
    def simulated(self) -> bool:
        """Return True if any device is simulated."""
        return any(d.simulated for devices in self.devices.values() for d in devices)

    @cached_property
    def sums(self) -> Mapping[str, ProjectSums]:
        """Return each project's sums, its children's workloads included."""
        specs = {name: record.spec for name, record in self.projects.items()}
        holding = self.queues.holding
        return sums_of(self.queues, specs, self.view_cache.busy(self.at, holding, self._busy))

    def _busy(self) -> dict[str, float]:
        """Return the GPUs kept busy by each project's own workloads, of the measured ones."""
        busy = {}
        for project, records in self.queues.holding.by_project.items():
            measured = [
                current for r in records if (current := self.meter.current(r.id)) is not None
            ]
            if measured:
                busy[project] = sum(gpus for gpus, _ in measured)
        return busy

    @cached_property
    def device_states(self) -> Mapping[str, Sequence[DeviceState]]:
        """Return each node's devices with holders and processes."""
        holders = self.queues.holding.by_device
        return {
            node: [self._device_state(d, holders.get((node, d.index), NO_HOLDERS)) for d in devices]
            for node, devices in self.devices.items()
        }

    def _device_state(self, device: Device, holders: DeviceHolders) -> DeviceState:
        uuid = device.uuid
        processes = self.agent_reports.device_processes(self.at, uuid)
        other_accounts = frozenset(
            [p.account for p in processes if p.workload not in holders.workloads]
        )
        mps = self.agent_reports.sharing.mps(uuid)
        return DeviceState(device, holders, processes, self.meter.device(uuid), mps, other_accounts)

    def device(self, node: str, index: int) -> Device | None:
        """Return a device of a node by its index."""
        devices = self.devices.get(node, ())
        if index < len(devices) and devices[index].index == index:  # no gaps
            return devices[index]
        return next((d for d in devices if d.index == index), None)
