"""Choice of the node's device source: NVML, or simulated devices on a machine without a GPU."""

from typing import Literal

from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.nvml_inventory import NvmlMissing
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.readings import DeviceSource
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

DEFAULT_SIMULATED = 5
"""Simulated GPUs on a machine without any: enough for two quotas of 2.5 each."""


def open_devices(
    gpus: int | Literal["auto"] = "auto", simulate: int | None = None, *, node: str = "localhost"
) -> DeviceSource:
    """Open this node's device source.

    `simulate` N overrides `gpus` and creates N simulated devices. Otherwise `gpus` N opens the
    first N real devices, and `auto` all of them, or five simulated ones if there are none. `node`
    makes the UUIDs of simulated devices stable and distinct.

    Raises:
        InvalidRequest: a number is negative.
        Unavailable: fewer real devices than requested; the message has NVML's answer.
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
