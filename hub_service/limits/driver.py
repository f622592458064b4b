"""A memory limit that the driver keeps, for all processes of a control group together (tier T4).

NVIDIA's library has the call from driver 615 on, and lets root alone use it; whether it works here
is found out by trying it on a group without processes. Knows the call; `cgroups` makes the groups.
Written from nvidia-ml-py 13.615 and not tried on such a driver: there was none.
"""

from collections.abc import Sequence
from pathlib import Path

import pynvml

from runai.hub_service.limits.cgroups import Groups, GroupsUnavailable

MIB = 1 << 20
PROBE = "probe"


class DriverLimitsUnavailable(Exception):
    """The driver keeps no limits here; its half sentence says why."""


class DriverLimits:
    """Sets and lifts limits of groups on devices; NVML is open."""

    def __init__(self, devices: Sequence[str], groups: Groups) -> None:
        """Try the call for each device (UUID), where it can change nothing.

        Raises:
            DriverLimitsUnavailable: the call is not there, or not for us.
        """
        self.groups = groups
        try:
            probe = groups.path(PROBE)
            probe.mkdir(exist_ok=True)
        except OSError as error:
            raise DriverLimitsUnavailable(f"no control group can be made ({error})") from error
        try:
            for device in devices:
                self.lift(probe, device)
        except pynvml.NVMLError as error:
            raise DriverLimitsUnavailable(_why(error)) from error
        finally:
            groups.remove(PROBE)

    @classmethod
    def open(cls, devices: Sequence[str]) -> "DriverLimits":
        """Return the limits of this machine's driver.

        Raises:
            DriverLimitsUnavailable: they cannot be had; says why.
        """
        if not hasattr(pynvml, "nvmlDeviceSetMemoryLimits_v1"):
            raise DriverLimitsUnavailable("nvidia-ml-py is older than the call (13.615)")
        try:
            return cls(devices, Groups.find())
        except GroupsUnavailable as error:
            raise DriverLimitsUnavailable(str(error)) from error

    def limit(self, group: Path, device: str, memory_mib: int) -> None:
        """Refuse the group's processes more than this of a device, all of them together.

        Raises:
            pynvml.NVMLError: the driver refuses.
        """
        _set(group, device, memory_mib * MIB, memory_mib * MIB)

    def lift(self, group: Path, device: str) -> None:
        """Let the group's processes have what there is.

        Raises:
            pynvml.NVMLError: the driver refuses.
        """
        _set(group, device, 0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)


def _set(group: Path, device: str, soft: int, hard: int) -> None:
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.encode())
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=str(group).encode(), softLimit=soft, hardLimit=hard
    )
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)


def _why(error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        return "the driver has no limits by control group (615 and newer have)"
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return "the driver lets only root set limits"
    return f"NVML says: {error}"
