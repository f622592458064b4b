"""Readings of one poll, and the protocol of device sources.

Memory is in MiB, utilization a share of the whole device, 0..1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runai.hub_service.model.device import Device
from runai.hub_service.wire.agent_reports import AgentAllocation


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device as a whole over the interval of a poll; None is unknown, never idle."""

    device: str
    """UUID."""
    utilization: float | None
    memory_mib: int | None
    fault: str = ""
    """Why nothing new may be placed on it; it may be measured all the same."""


class ProcessReading(NamedTuple):
    """What one process did on one device over the interval of a poll; None is unknown."""

    device: str
    """UUID."""
    pid: int
    workload: str
    """"" for a process that belongs to no workload ("other processes"): it explains a full GPU."""
    utilization: float | None
    memory_mib: int | None
    worker: str = ""
    account: str = ""
    """The Unix account that it runs under; "" where that is not to be seen."""
    name: str = ""
    """The program's name; never its arguments."""
    created: float = 0.0
    """When it was started, in Unix seconds: with `pid` it names one process for ever."""
    notebook: str = ""
    """The notebook whose kernel it is, or belongs to, without its folders."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Everything that was measured since the poll before.

    A device whose poll failed is in `failed` and has no processes: a gap. A device that is not
    there and has no process of a workload that holds it was idle: a zero.
    """

    at: float
    """When it ended, in Unix seconds."""
    interval: float
    """Seconds since the poll before."""
    devices: tuple[DeviceReading, ...]
    processes: tuple[ProcessReading, ...]
    failed: frozenset[str] = frozenset()


class DeviceSource(Protocol):
    """Where devices and measurements come from. Calls block; one caller at a time."""

    def devices(self) -> list[Device]:
        """Return the devices of this node in the order of their index; always the same ones."""

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Measure what happened since the previous call (the first call: since it was opened).

        `allocations` says which workloads hold which devices now, and their processes. An error of
        one device costs only that device; the call itself does not raise for it.
        """

    def close(self) -> None:
        """Let go of the driver; a repeat does nothing."""
