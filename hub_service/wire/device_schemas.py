"""The part of the wire contract about devices: who holds them, how they do, what else runs there.

Known by those who know `schemas`, which hands these on.
"""

from pydantic import Field

from runai.hub_service.wire.base_schema import Wire


class AllocationView(Wire):
    """Who holds a part of a device."""

    workload: str
    user: str
    gpus: float
    utilized: float | None = None
    """Busy share of the whole device, 0..1; None: not measured."""


class OthersView(Wire):
    """Processes on a device that belong to none of those who hold it."""

    account: str
    """The Unix account; "" for whom that does not concern, or where it is not to be seen."""
    processes: int
    utilized: float | None
    memory_mib: int | None


class DeviceView(Wire):
    """One device: what is allocated of it and how busy it is."""

    device: int
    uuid: str
    name: str
    memory_mib: int
    simulated: bool
    healthy: bool = True
    fault: str = ""
    """Why nothing new is placed on it, as half a sentence; "" while it is healthy."""
    mps: str | None = None
    """Where sharing by MPS was asked for: why it cannot be had, as half a sentence, or "" while its
    limit was seen to hold."""
    allocated: float = 0
    utilized: float | None = None
    memory_used_mib: int | None = None
    allocations: list[AllocationView] = Field(default_factory=list)
    others: list[OthersView] = Field(default_factory=list)


class NodeView(Wire):
    """A machine and its devices."""

    name: str
    devices: list[DeviceView]
