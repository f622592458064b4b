"""Everything there is to show, at one instant: records, devices, shares and what was measured.

Gathered by `platform`, shown by `views` and `metrics`, each as their caller may see it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from runai.hub_service.agent.devices import Device
from runai.hub_service.api.drawn_views import DrawnViews
from runai.hub_service.api.present import Present
from runai.hub_service.api.queues import ProjectSums, Queues, sums_of
from runai.hub_service.api.reports import ProcessSample
from runai.hub_service.api.schemas import DeviceView, WorkloadView
from runai.hub_service.clusters.progress import Progress
from runai.hub_service.clusters.records import (
    ProjectRecord,
    ProjectSpec,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.idle.watch import IdleNow
from runai.hub_service.ledger import Totals
from runai.hub_service.notifications import Recent
from runai.hub_service.scheduler.explanation import ExpectedStart
from runai.hub_service.scheduler.model import ProjectShare
from runai.hub_service.scheduler.quantity import MilliGpu

__all__ = ["Meter", "World"]

DeviceKey = tuple[str, int, tuple[bool, ...], tuple[bool, str] | None]
"""Node, number, which of its holders the reader sees, and who reads where others are on it."""


class Meter(Protocol):
    """What the ledger knows of the present."""

    def current(self, workload: WorkloadId) -> tuple[float, int | None] | None:
        """Return GPUs kept busy and MiB used now; None when nothing was measured."""

    def average(self, workload: WorkloadId) -> float | None:
        """Return GPUs kept busy, averaged over the time it held any."""

    def totals(self, workload: WorkloadId) -> Totals:
        """Return what a workload has added up to; nothing for one that was never measured."""

    def counted(
        self, kind: Literal["project", "node", "workload", "reclaimed"]
    ) -> Mapping[str, Totals]:
        """Return what each has added up to since the service started, by its name."""

    def reclaimed(self) -> float:
        """Return the idle GPU-seconds that were given to others, ever."""

    def reported(self) -> Mapping[str, float]:
        """Return until when each node has been measured."""

    def last_active(self, uuid: str) -> float | None:
        """Return when a device was last not idle; None when it was not since the start."""

    def device(self, uuid: str) -> tuple[float | None, int | None] | None:
        """Return a device's busy share and used MiB now; None when nothing was measured."""


@dataclass(frozen=True)
class World:
    """Everything there is to show, at one instant."""

    at: float
    workloads: Sequence[WorkloadRecord]
    projects: Mapping[str, ProjectRecord]
    devices: Mapping[str, Sequence[Device]]
    shares: Mapping[str, ProjectShare]
    meter: Meter
    present: Present
    starts: Mapping[WorkloadId, ExpectedStart] = field(default_factory=dict)
    """When those that wait are expected to start, as far as was looked."""
    progress: Mapping[WorkloadId, Progress] = field(default_factory=dict)
    """What jobs have reported of themselves last."""
    recent: Recent = field(default_factory=Recent)
    """What people were told lately."""
    drawn: DrawnViews = field(default_factory=DrawnViews)
    """What was drawn before, and is the same now."""
    queued: Callable[[Sequence[WorkloadRecord]], Queues] = Queues.of
    """Puts workloads in order, or knows that it has done so."""
    idle: Callable[[WorkloadId], IdleNow | None] = lambda _workload: None
    """How idle a workload is; None: it is not."""

    def spec(self, project: str) -> ProjectSpec | None:
        """Return a project, if it still exists."""
        record = self.projects.get(project)
        return record.spec if record else None

    @cached_property
    def largest_device_mib(self) -> int:
        """Return the memory of the largest device."""
        sizes = (device.memory_mib for devices in self.devices.values() for device in devices)
        return max(sizes, default=0)

    @cached_property
    def most_devices(self) -> int:
        """Return how many devices the node has that has most."""
        return max((len(devices) for devices in self.devices.values()), default=0)

    @cached_property
    def gpu_types(self) -> frozenset[str]:
        """Return the types of all devices."""
        return frozenset(d.name for devices in self.devices.values() for d in devices)

    @cached_property
    def capacity(self) -> MilliGpu:
        """Return all GPUs of all nodes."""
        return MilliGpu(1000 * sum(len(devices) for devices in self.devices.values()))

    @cached_property
    def simulated(self) -> bool:
        """Tell whether any device is simulated."""
        return any(d.simulated for devices in self.devices.values() for d in devices)

    @cached_property
    def queues(self) -> Queues:
        """Return who waits and who does not."""
        return self.queued(self.workloads)

    @cached_property
    def sums(self) -> Mapping[str, ProjectSums]:
        """Return what each project's workloads come to, those of its children included."""
        specs = {name: record.spec for name, record in self.projects.items()}
        return sums_of(self.queues, specs, self._busy)

    def _busy(self, record: WorkloadRecord) -> float | None:
        measured = self.meter.current(record.id)
        return measured[0] if measured else None

    @cached_property
    def held(self) -> Mapping[tuple[str, int], Sequence[tuple[WorkloadRecord, MilliGpu]]]:
        """Return who holds how much of each device that somebody holds, by node and number."""
        found: dict[tuple[str, int], list[tuple[WorkloadRecord, MilliGpu]]] = {}
        for record in self.queues.holding:
            for worker in record.workers:
                for share in worker.devices:
                    holders = found.setdefault((worker.node or "", share.device), [])
                    holders.append((record, share.gpus))
        return found

    @cached_property
    def shown(self) -> dict[tuple[WorkloadId, bool, bool], tuple[WorkloadRecord, WorkloadView]]:
        """What was drawn of this instant, by what its reader may do: the same for all of them."""
        return {}

    @cached_property
    def shown_devices(self) -> dict[DeviceKey, DeviceView]:
        """Devices drawn of this instant, by all that differs between readers."""
        return {}

    def running(self, uuid: str) -> Sequence[ProcessSample]:
        """Return the processes on a device."""
        found = self._running.get(uuid)
        if found is None:
            found = self._running[uuid] = self.present.on(self.at, uuid)
        return found

    @cached_property
    def _running(self) -> dict[str, Sequence[ProcessSample]]:
        return {}

    def device(self, node: str, index: int) -> Device | None:
        """Return a device of a node by its number."""
        devices = self.devices.get(node, ())
        if index < len(devices) and devices[index].index == index:  # as nearly everywhere
            return devices[index]
        return next((d for d in devices if d.index == index), None)
