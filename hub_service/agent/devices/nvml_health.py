"""GPU faults, from XID events, the driver's recovery action and failed row remappings.

Lists the XIDs after which a GPU must be reset, and clears them once the driver requests no
recovery. XIDs caused by faulty programs (13, 31, 43, 45) are ignored.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from runai.hub_service.agent.devices.nvml_inventory import Gpu, call_or_none

CRITICAL_XIDS = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GPU system processor does not answer",
    120: "GPU system processor error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization failed",
    151: "key rotation error",
    156: "resource retired, reset needed",
    158: "fatal timeout",
}
"""XIDs after which nothing may run before a reset or a repair.

From NVIDIA's catalogue ("Analyzing Xid Errors with the Xid Catalog"): each XID with the immediate
action RESET_GPU, RESTART_VM, RESTART_BM, CHECK_MECHANICALS, or a workflow that ends in one of them.
Left out: 109 (context switch timeout), which a user's kernel can cause, as in NVIDIA's device
plugin; 144 to 150, which need decoding of their message; 155, which deliberately disabled links
also report. If one of these needs a reset, the driver requests it (`_RECOVERY`).
"""

_RECOVERY = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to drain its peers",
    4: "the driver asks to drain and reset the GPU",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the system",
}
"""NVML_GPU_RECOVERY_ACTION_* by value: older releases of the binding lack the names. Left out: 5,
which concerns the IMEX domain."""

_NO_RECOVERY = 0

STATE_INTERVAL_S = 60.0
"""Interval between queries of a GPU's state. An XID counts for at least this long."""

_FIELD_RECOVERY = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older releases have no name for it
_EVENTS_PER_POLL = 64
_NO_INSTANCE = 0xFFFFFFFF


class Health:
    """Current faults of each GPU or MIG instance."""

    def __init__(self, gpus: Sequence[Gpu], clock: Callable[[], float] = time.monotonic) -> None:
        """Subscribe to XID events; earlier faults show in the GPU's state only."""
        self._gpus = [gpu for gpu in gpus if gpu.handle is not None]
        self._clock = clock
        self._xids: dict[str, tuple[float, str]] = {}
        self._state: dict[str, str] = {}
        self._queried_at: dict[str, float] = {}
        self._events: Any = None
        self._subscribe()

    def close(self) -> None:
        """Unsubscribe from XID events."""
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
            self._events = None

    def faults(self) -> dict[str, str]:
        """Return the fault of each unusable device, by UUID."""
        now = self._clock()
        for uuid, text in self._take_new_xids():
            self._xids[uuid] = (now, text)
        faults = {}
        for gpu in self._gpus:
            self._refresh_state(gpu, now)
            for nvml_device in gpu.devices:
                _, xid = self._xids.get(nvml_device.device.uuid, (0.0, ""))
                if fault := xid or self._state.get(gpu.uuid, ""):
                    faults[nvml_device.device.uuid] = fault
        return faults

    def _refresh_state(self, gpu: Gpu, now: float) -> None:
        """Query a GPU's state every `STATE_INTERVAL_S`; clear its XIDs if it needs no recovery."""
        if now - self._queried_at.get(gpu.uuid, -STATE_INTERVAL_S) < STATE_INTERVAL_S:
            return
        self._queried_at[gpu.uuid] = now
        try:
            recovery = _recovery_action(gpu.handle)
            rows = call_or_none(pynvml.nvmlDeviceGetRemappedRows, gpu.handle)
        except pynvml.NVMLError as error:
            if text := fault_of(error):
                self._state[gpu.uuid] = text
            return
        text = _RECOVERY.get(recovery or 0, "")
        if not text and rows is not None and rows[3]:
            text = "memory rows could not be remapped"
        self._state[gpu.uuid] = text
        if recovery == _NO_RECOVERY:
            for nvml_device in gpu.devices:
                since, _ = self._xids.get(nvml_device.device.uuid, (now, ""))
                if now - since >= STATE_INTERVAL_S:
                    del self._xids[nvml_device.device.uuid]

    def _subscribe(self) -> None:
        """Subscribe to the XID events of each GPU that has them."""
        xid_event = pynvml.nvmlEventTypeXidCriticalError
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for gpu in self._gpus:
            with contextlib.suppress(pynvml.NVMLError):  # too old, or lost: see its state
                if pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & xid_event:
                    pynvml.nvmlDeviceRegisterEvents(gpu.handle, xid_event, self._events)

    def _take_new_xids(self) -> Iterator[tuple[str, str]]:
        """Yield each device with a critical XID since the last call, and the fault's text."""
        if self._events is None:
            return
        for _ in range(_EVENTS_PER_POLL):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except pynvml.NVMLError:
                return  # mostly NVML_ERROR_TIMEOUT: no event is pending
            code = int(event.eventData)
            if event.eventType != pynvml.nvmlEventTypeXidCriticalError or code not in CRITICAL_XIDS:
                continue
            ids = (event.gpuInstanceId, event.computeInstanceId)
            for gpu in self._gpus:
                if gpu.uuid == uuid:
                    for nvml_device in gpu.devices:
                        if nvml_device.instance in {None, ids} or _NO_INSTANCE in ids:
                            yield nvml_device.device.uuid, f"XID {code}: {CRITICAL_XIDS[code]}"


def fault_of(error: pynvml.NVMLError) -> str:
    """Return the fault that an NVML error means for the device; "" if it means none."""
    match error.value:
        case pynvml.NVML_ERROR_GPU_IS_LOST:
            return "the driver has lost it"
        case pynvml.NVML_ERROR_RESET_REQUIRED:
            return "it must be reset"
        case _:
            return ""


def _recovery_action(handle: Any) -> int | None:  # noqa: ANN401  an opaque pointer
    """Return the recovery action that the driver requests; None if it reports none."""
    values = call_or_none(pynvml.nvmlDeviceGetFieldValues, handle, [_FIELD_RECOVERY])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)
