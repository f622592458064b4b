"""Everything there is to show, at one instant: records, devices, shares and what was measured.

Gathered by `platform`, shown by `views` and `metrics`, each as their caller may see it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from runai.hub_service.agent.devices import Device
from runai.hub_service.api.present import Present
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
from runai.hub_service.scheduler.model import ProjectShare
from runai.hub_service.scheduler.quantity import MilliGpu

__all__ = ["Meter", "World"]


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
    progress: Mapping[WorkloadId, Progress] = field(default_factory=dict)
    """What jobs have reported of themselves last."""
    recent: Recent = field(default_factory=Recent)
    """What people were told lately."""
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
    def capacity(self) -> MilliGpu:
        """Return all GPUs of all nodes."""
        return MilliGpu(1000 * sum(len(devices) for devices in self.devices.values()))

    @cached_property
    def simulated(self) -> bool:
        """Tell whether any device is simulated."""
        return any(d.simulated for devices in self.devices.values() for d in devices)

    @cached_property
    def by_project(self) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Return the workloads of each project, those of its children included."""
        found: dict[str, list[WorkloadRecord]] = {name: [] for name in self.projects}
        for record in self.workloads:
            name: str | None = record.spec.project
            while name is not None and name in found:
                found[name].append(record)
                spec = self.spec(name)
                name = spec.parent if spec else None
        return found

    def device(self, node: str, index: int) -> Device | None:
        """Return a device of a node by its number."""
        return next((d for d in self.devices.get(node, ()) if d.index == index), None)
