"""Which GPUs are broken, by what the driver says: XID events, the recovery it asks for, lost rows.

Knows which XIDs mean that a GPU must be reset, and when one may be used again. A program's own
mistakes (XID 13, 31, 43, 45) break nothing. Asked once a poll by `nvml`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from runai.hub_service.agent.devices.nvml_hardware import Gpu, known

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

Those of NVIDIA's catalogue ("Analyzing Xid Errors with the Xid Catalog") whose immediate action is
RESET_GPU, RESTART_VM, RESTART_BM, CHECK_MECHANICALS or a workflow that ends in one of them. Left
out: 109 (a context switch timed out), which a user's own kernel can bring about, as NVIDIA's device
plugin does; 144 to 150, whose message must be decoded; 155, which links that go down by intention
tell, too. Where one of these does need a reset, the driver asks for it (`_RECOVERY`).
"""

_RECOVERY = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to drain its peers",
    4: "the driver asks to drain and reset the GPU",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the system",
}
"""NVML_GPU_RECOVERY_ACTION_*, which older releases of the binding do not name; 5 is another's."""

_NO_RECOVERY = 0

LOOK_AGAIN_S = 60.0
"""How often a GPU's state is asked for, and how long an XID counts at least."""

_FIELD_RECOVERY = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older releases have no name for it
_EVENTS_PER_POLL = 64
_NO_INSTANCE = 0xFFFFFFFF


class Health:
    """Remember what is wrong with each GPU, or instance of one."""

    def __init__(self, gpus: Sequence[Gpu], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to listen; what happened before is known by the GPU's state alone."""
        self._gpus = [gpu for gpu in gpus if gpu.handle is not None]
        self._clock = clock
        self._xids: dict[str, tuple[float, str]] = {}
        self._state: dict[str, str] = {}
        self._asked: dict[str, float] = {}
        self._events: Any = None
        self._listen()

    def close(self) -> None:
        """Stop listening."""
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
            self._events = None

    def faults(self) -> dict[str, str]:
        """Return what is wrong now by the UUID of each device that may not be used."""
        now = self._clock()
        for uuid, text in self._told():
            self._xids[uuid] = (now, text)
        faults = {}
        for gpu in self._gpus:
            self._look(gpu, now)
            for part in gpu.parts:
                _, xid = self._xids.get(part.device.uuid, (0.0, ""))
                if fault := xid or self._state.get(gpu.uuid, ""):
                    faults[part.device.uuid] = fault
        return faults

    def _look(self, gpu: Gpu, now: float) -> None:
        """Ask for a GPU's state now and then; it also tells when an XID is over."""
        if now - self._asked.get(gpu.uuid, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return
        self._asked[gpu.uuid] = now
        try:
            recovery = _recovery(gpu.handle)
            rows = known(pynvml.nvmlDeviceGetRemappedRows, gpu.handle)
        except pynvml.NVMLError as error:
            if text := lost(error):
                self._state[gpu.uuid] = text
            return
        text = _RECOVERY.get(recovery or 0, "")
        if not text and rows is not None and rows[3]:
            text = "memory rows could not be remapped"
        self._state[gpu.uuid] = text
        if recovery == _NO_RECOVERY:
            for part in gpu.parts:
                since, _ = self._xids.get(part.device.uuid, (now, ""))
                if now - since >= LOOK_AGAIN_S:
                    del self._xids[part.device.uuid]

    def _listen(self) -> None:
        wanted = pynvml.nvmlEventTypeXidCriticalError
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for gpu in self._gpus:
            with contextlib.suppress(pynvml.NVMLError):  # too old, or lost: its state tells
                if pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & wanted:
                    pynvml.nvmlDeviceRegisterEvents(gpu.handle, wanted, self._events)

    def _told(self) -> Iterator[tuple[str, str]]:
        """Yield the devices that critical XIDs were told of since the last time."""
        if self._events is None:
            return
        for _ in range(_EVENTS_PER_POLL):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except pynvml.NVMLError:
                return  # mostly NVML_ERROR_TIMEOUT: none waits
            code = int(event.eventData)
            if event.eventType != pynvml.nvmlEventTypeXidCriticalError or code not in CRITICAL_XIDS:
                continue
            ids = (event.gpuInstanceId, event.computeInstanceId)
            for gpu in self._gpus:
                if gpu.uuid == uuid:
                    for part in gpu.parts:
                        if part.instance in {None, ids} or _NO_INSTANCE in ids:
                            yield part.device.uuid, f"XID {code}: {CRITICAL_XIDS[code]}"


def lost(error: pynvml.NVMLError) -> str:
    """Say what is wrong with a device that answers so; "" if that does not tell."""
    match error.value:
        case pynvml.NVML_ERROR_GPU_IS_LOST:
            return "the driver has lost it"
        case pynvml.NVML_ERROR_RESET_REQUIRED:
            return "it must be reset"
        case _:
            return ""


def _recovery(handle: Any) -> int | None:  # noqa: ANN401  an opaque pointer
    """Return the recovery action that the driver asks for; None where it does not tell."""
    values = known(pynvml.nvmlDeviceGetFieldValues, handle, [_FIELD_RECOVERY])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)
