"""The GPUs of this node and what they do: real ones (NVML) or simulated ones, one protocol.

Knows the protocol and how to choose a source; `nvml` and `simulated` implement it, and one contract
suite (`tests/agent`) runs over both. Used by the composition root (which devices are there) and by
the agent's loop (what they do). Memory is in MiB, utilization a share of the whole device, 0..1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from runai.hub_service.api.reports import AgentAllocation
from runai.hub_service.errors import InvalidRequest, Unavailable

DEFAULT_SIMULATED = 5
"""Simulated GPUs on a machine without a real one: the story of two projects with 2.5 each."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a node as the scheduler and the user see it.

    `index` is the position on its node (the core's device number), `uuid` what a process is
    given in CUDA_VISIBLE_DEVICES, `memory_mib` the memory that workloads may use.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    simulated: bool
    fault: str = ""
    """Why nothing new is placed on it, as half a sentence; "" while it is healthy."""

    @property
    def healthy(self) -> bool:
        """Tell whether workloads may be placed on it."""
        return not self.fault


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


def open_devices(
    gpus: int | Literal["auto"] = "auto", simulate: int | None = None, *, node: str = "localhost"
) -> DeviceSource:
    """Return the devices that the platform is to use on this node.

    `simulate` N wins and makes N simulated devices. Else `gpus` N takes the first N real ones, and
    `auto` all real ones, or five simulated ones where there are none. `node` makes the UUIDs of
    simulated devices stable and distinct.

    Raises:
        InvalidRequest: a negative number.
        Unavailable: fewer real devices than asked for; says what NVML answered.
    """
    # Imported here: the service asks for simulated devices without the driver's library, and
    # whoever only needs the type Device pays for neither.
    from runai.hub_service.agent.nvml import NvmlDevices  # noqa: PLC0415
    from runai.hub_service.agent.nvml_hardware import NvmlMissing  # noqa: PLC0415
    from runai.hub_service.agent.simulated import SimulatedDevices  # noqa: PLC0415

    for option, number in (("--gpus", gpus), ("--simulate", simulate)):
        if isinstance(number, int) and number < 0:
            raise InvalidRequest(
                f"{option} {number} is not a number of GPUs.", hint="Give 0 or more."
            )
    if simulate is not None:
        return SimulatedDevices(simulate, node=node)
    if gpus == 0:
        return SimulatedDevices(0, node=node)
    try:
        return NvmlDevices(None if gpus == "auto" else gpus)
    except NvmlMissing as missing:
        if gpus == "auto":
            return SimulatedDevices(DEFAULT_SIMULATED, node=node)
        raise Unavailable(
            f"{gpus} GPUs were asked for with --gpus, but {missing}.",
            hint=f"Use --simulate {gpus} to try the platform without them.",
        ) from missing
