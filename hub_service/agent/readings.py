"""Readings of one poll, and the protocol of device sources.

Memory is in MiB; utilization is a share of the whole device, 0..1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runai.hub_service.model.device import Device
from runai.hub_service.wire.reports import AgentAllocation


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One whole device over a poll's interval; None means unknown, never idle."""

    device: str
    """UUID."""
    utilization: float | None
    memory_mib: int | None
    fault: str = ""
    """Reason why nothing new may be placed on it, or ""; it may still be measured."""


class ProcessReading(NamedTuple):
    """Use of one device by one process over a poll's interval; None means unknown."""

    device: str
    """UUID."""
    pid: int
    workload: str
    """"" for a process that belongs to no workload ("other processes"): it explains a full GPU."""
    utilization: float | None
    memory_mib: int | None
    worker: str = ""
    account: str = ""
    """Unix account of the process; "" if it cannot be read."""
    name: str = ""
    """Program name, never its arguments."""
    created: float = 0.0
    """Start time in Unix seconds; with `pid` it identifies one process for ever."""
    notebook: str = ""
    """File name of the notebook if the process is its kernel or a descendant."""


@dataclass(frozen=True, slots=True)
class Poll:
    """All measurements since the previous poll.

    A device with a failed poll is in `failed` and has no processes: a gap. A device outside
    `failed` without a process of a workload that holds it was idle: a zero.
    """

    at: float
    """End of the poll, in Unix seconds."""
    interval: float
    """Seconds since the previous poll."""
    devices: tuple[DeviceReading, ...]
    processes: tuple[ProcessReading, ...]
    failed: frozenset[str] = frozenset()


class DeviceSource(Protocol):
    """Source of devices and measurements. Calls block; one caller at a time."""

    def devices(self) -> list[Device]:
        """Return the devices of this node in index order; every call returns the same devices."""

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Measure the interval since the previous call, or since the source was opened.

        `allocations` lists the workloads that hold devices now, and their processes. An error of
        one device fails that device only; the call does not raise for it.
        """

    def close(self) -> None:
        """Release the driver; repeated calls do nothing."""
