"""Memory limits that the driver enforces for all processes of a control group (tier T4).

NVML has the call from driver 615 on and permits it to root only; a test on a group without
processes shows if it works. Written from nvidia-ml-py 13.615, never run on such a driver.
"""

from collections.abc import Sequence
from pathlib import Path

import pynvml

from runai.hub_service.limits.cgroups import Groups, GroupsUnavailable

MIB = 1 << 20
PROBE = "probe"


class DriverLimitsUnavailable(Exception):
    """The driver enforces no limits on this machine; the message is half a sentence."""


class DriverLimits:
    """Memory limits of control groups on devices; NVML must be initialised."""

    def __init__(self, devices: Sequence[str], groups: Groups) -> None:
        """Test the call for each device (UUID), on a group without processes.

        Raises:
            DriverLimitsUnavailable: the call is missing, or not permitted.
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
            DriverLimitsUnavailable: the driver, its binding or the control groups lack support.
        """
        if not hasattr(pynvml, "nvmlDeviceSetMemoryLimits_v1"):
            raise DriverLimitsUnavailable("nvidia-ml-py is older than the call (13.615)")
        try:
            return cls(devices, Groups.find())
        except GroupsUnavailable as error:
            raise DriverLimitsUnavailable(str(error)) from error

    def limit(self, group: Path, device: str, memory_mib: int) -> None:
        """Limit the device memory of all the group's processes together.

        Raises:
            pynvml.NVMLError: the driver refuses.
        """
        _set(group, device, memory_mib * MIB, memory_mib * MIB)

    def lift(self, group: Path, device: str) -> None:
        """Remove the limit of the group's processes.

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
