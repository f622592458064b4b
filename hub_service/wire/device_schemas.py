"""The wire contract of devices: allocations, health, memory limits and processes."""

from typing import Literal

from pydantic import Field

from runai.hub_service.wire.base_schema import Wire


class AllocationView(Wire):
    """A workload's allocation on a device."""

    workload: str
    user: str
    gpus: float
    utilized: float | None = None
    """Busy share of the whole device, 0..1; None: not measured."""


class OthersView(Wire):
    """Processes on a device that belong to none of its allocations."""

    account: str
    """The Unix account; "" if the caller may not see it or the node hides it."""
    processes: int
    utilized: float | None
    memory_mib: int | None


class DeviceView(Wire):
    """One device, its allocations and its utilization."""

    device: int
    uuid: str
    name: str
    memory_mib: int
    simulated: bool
    healthy: bool = True
    fault: str = ""
    """Why no new worker is placed on it, as half a sentence; "" while healthy."""
    mps: str | None = None
    """Why MPS is unavailable, as half a sentence; "" while a test of its limit succeeds.

    None: sharing by MPS is not requested.
    """
    allocated: float = 0
    utilized: float | None = None
    memory_used_mib: int | None = None
    allocations: list[AllocationView] = Field(default_factory=list)
    others: list[OthersView] = Field(default_factory=list)


class NodeView(Wire):
    """A node and its devices."""

    name: str
    devices: list[DeviceView]
    cpus: float | None = None
    """CPUs that workloads may request together; None: without a bound."""
    cpus_allocated: float = 0
    memory_mib: int | None = None
    """Main memory, as `cpus`."""
    memory_allocated_mib: int = 0
    loss: str = ""
    """Why it offers fewer GPUs than it has, as a clause; "" if it offers all."""


class LimitView(Wire):
    """Memory limit of a workload on each device it shares, and its enforcement."""

    memory_mib: int
    """The smallest limit, if it shares several devices."""
    tier: Literal["frameworks", "mps", "driver"]
    badge: str
    """`hard limit` or `soft limit`."""
    why: str
    """Meaning of the badge, in one sentence."""


class ProcessView(Wire):
    """A process of a workload on a device."""

    pid: int
    """PID in the node's namespace."""
    worker: str
    device: str
    """UUID."""
    name: str
    """A kernel's notebook, else the program; never its arguments."""
    utilized: float | None
    memory_mib: int | None
