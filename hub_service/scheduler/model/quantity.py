"""Amounts of GPU, memory and time as integers, and their text form.

Units are milli-GPU, MiB and seconds; conversions follow P3.
"""

from __future__ import annotations

from typing import Annotated, Final, NewType

MilliGpu = NewType("MilliGpu", int)
"""Thousandths of a GPU: half a device is 500, four devices are 4000."""

Mib = NewType("Mib", int)
"""Mebibytes of device or main memory."""

# Bounds that `json_codec` checks when it reads JSON; type checkers see plain types.
Name = Annotated[str, "not empty"]
Count = Annotated[int, "from 0"]
Positive = Annotated[int, "from 1"]
PositiveMib = Annotated[Mib, "from 1"]
DeviceCount = Annotated[int, "from 0 to MAX_DEVICES"]
WorkerGpus = Annotated[MilliGpu, "whole, or a fraction of one"]

MAX_DEVICES: Final = 10_000
"""Maximum of one node, because the scheduler visits each device on its own."""

WHOLE_GPU: Final = MilliGpu(1000)

_TOLERANCE = 1e-6  # of a milli-GPU: 0.1 + 0.2 is written as 0.30000000000000004


def milli_gpus(gpus: float) -> MilliGpu:
    """Convert a number of GPUs to milli-GPU.

    >>> milli_gpus(0.1 + 0.2)
    300

    Raises:
        ValueError: the number is negative, not finite, or finer than a thousandth.
    """
    if not 0 <= gpus < float("inf"):
        message = f"{gpus} GPUs are not possible: use a number from 0 upwards"
        raise ValueError(message)
    milli = round(gpus * 1000)
    if abs(gpus * 1000 - milli) > _TOLERANCE * max(1.0, abs(milli)):
        message = f"{gpus} GPUs are too fine: use at most three decimals"
        raise ValueError(message)
    return MilliGpu(milli)


def gpu_number(milli: int) -> int | float:
    """Convert milli-GPU to a number of GPUs: 2000 is 2, 500 is 0.5.

    >>> gpu_number(2000), gpu_number(350)
    (2, 0.35)
    """
    whole, rest = divmod(milli, 1000)
    return milli / 1000 if rest else whole


def gpu_text(milli: int) -> str:
    """Format an amount for a sentence, without trailing zeros.

    >>> gpu_text(2000), gpu_text(2500)
    ('2', '2.5')
    """
    return str(gpu_number(milli))


def count_text(milli: int, noun: str = "GPU") -> str:
    """Format an amount with its noun in singular or plural.

    >>> count_text(1000), count_text(500), count_text(3000, "device")
    ('1 GPU', '0.5 GPUs', '3 devices')
    """
    return f"{gpu_text(milli)} {noun}{'' if milli == WHOLE_GPU else 's'}"


def duration_text(seconds: int) -> str:
    """Format a waiting time in days, hours, minutes or seconds, rounded up.

    >>> [duration_text(s) for s in (1, 90, 240, 5000, 100_000, 900_000)]
    ['1 second', '90 seconds', '4 minutes', '84 minutes', '28 hours', '11 days']
    """
    for unit, length, enough in (("day", 86400, 5), ("hour", 3600, 3), ("minute", 60, 2)):
        if seconds >= enough * length:
            return f"{-(-seconds // length)} {unit}s"
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def memory_of_fraction(milli: int, device_mib: int) -> Mib:
    """Return the device memory that a fraction reserves, rounded down (P3).

    >>> memory_of_fraction(500, 81559)
    40779
    """
    return Mib(milli * device_mib // 1000)


def fraction_of_memory(mib: int, device_mib: int) -> MilliGpu:
    """Return the milli-GPU that a memory request counts for in quotas, rounded up (P3).

    >>> fraction_of_memory(4096, 81559)
    51
    """
    return MilliGpu(-(-1000 * mib // device_mib))
