"""Choose the GPUs of this node: real ones (NVML), or simulated ones where there are none."""

from typing import Literal

from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.nvml_hardware import NvmlMissing
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.readings import DeviceSource
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

DEFAULT_SIMULATED = 5
"""Simulated GPUs on a machine without a real one: the story of two projects with 2.5 each."""


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
