"""What can be wrong with how a machine's GPUs are driven, and with how they are shared.

One function for each question, as in `examination`, whose findings these are. Nothing is changed by
looking. Called by `examination`.
"""

from importlib.util import find_spec
from typing import Final

from runai.hub_service.cli.findings import Finding

__all__ = ["check_driver"]

_NOT_LOADED: Final = 9
_OTHER_VERSION: Final = 18
_MENDS: Final = {
    _NOT_LOADED: "Load its module (modprobe nvidia); `dmesg` says why the kernel does not.",
    _OTHER_VERSION: "Library and kernel module are of different versions: restart the machine.",
}


def check_driver() -> Finding:
    """Does this machine have an NVIDIA driver, and does it work?"""
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
