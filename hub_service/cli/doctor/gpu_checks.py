"""Checks of the GPU driver and of sharing by MPS; they change nothing."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from runai.hub_service.cli.doctor import Finding
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE
from runai.hub_service.wire.device_schemas import NodeView

_MPS: Final = "MPS"
_ANSWERS_WITHIN_S: Final = 5.0

_NOT_LOADED: Final = 9
_OTHER_VERSION: Final = 18
_MENDS: Final = {
    _NOT_LOADED: "Load its module (modprobe nvidia); `dmesg` says why the kernel does not.",
    _OTHER_VERSION: "Library and kernel module are of different versions: restart the machine.",
}


def check_driver() -> Finding:
    """Check that this machine has a working NVIDIA driver."""
    subject = "GPU driver"
    if find_spec("pynvml") is None:
        return Finding("note", subject, "not looked at: nvidia-ml-py is not installed here")
    import pynvml  # noqa: PLC0415 - an optional dependency

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failed:
        if failed.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Finding("note", subject, f"none on this machine ({failed})")
        mend = _MENDS.get(failed.value, "Look at nvidia-smi.")
        return Finding("failure", subject, f"it is installed and does not work: {failed}", mend)
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return Finding("ok", subject, f"{driver}, {pynvml.nvmlDeviceGetCount()} GPU(s) here")
    except pynvml.NVMLError as failed:
        return Finding("failure", subject, f"it does not answer: {failed}", "Look at nvidia-smi.")
    finally:
        pynvml.nvmlShutdown()


def check_mps(nodes: Sequence[NodeView]) -> Iterator[Finding]:
    """Check that MPS works and enforces its limit, on devices configured for it."""
    states = [
        (f"GPU {device.device} of {node.name}", device.mps)
        for node in nodes
        for device in node.devices
        if device.mps is not None
    ]
    troubles = {why for _, why in states} - {"", MPS_IS_TRIED, NO_MPS_HERE}
    for why in sorted(troubles):
        names = ", ".join(name for name, state in states if state == why)
        text = f"chosen, but not available on {names}: {why}; workloads take turns there"
        mend = (
            "Its logs are in `mps` in the data directory; `runai up --gpu-sharing timeslice` does"
            " without it."
        )
        yield Finding("failure", _MPS, text, mend)
    if tried := [name for name, state in states if state == MPS_IS_TRIED]:
        text = f"{MPS_IS_TRIED} on {', '.join(tried)}"
        yield Finding("note", _MPS, text, "Look again in a minute.")
    if working := [name for name, state in states if not state]:
        yield Finding("ok", _MPS, f"its limit was seen to hold on {', '.join(working)}")


def check_mps_daemons(directory: Path) -> Iterator[Finding]:
    """Check that the control daemon of each MPS device answers now.

    It uses NVIDIA's own program, and works only for a platform on this machine.
    """
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.limits.mps_daemon import MpsDaemon  # noqa: PLC0415
    from runai.hub_service.limits.mps_supervisor import SupervisorState  # noqa: PLC0415

    for path in sorted(directory.glob("*/state.json")):
        state = SupervisorState.read(path.parent)
        if state is None or not state.ready:
            continue  # `check_mps` reports it
        name = f"the control daemon of {path.parent.name}"
        daemon = MpsDaemon(path.parent.name, path.parent, patience_s=_ANSWERS_WITHIN_S)
        if why := daemon.unhealthy_reason():
            mend = (
                f"kill {state.pid} ends it with its clients; the service, started anew, starts it."
            )
            yield Finding("failure", _MPS, f"{name} is no use: {why}", mend)
        else:
            yield Finding("ok", _MPS, f"{name} answers")
