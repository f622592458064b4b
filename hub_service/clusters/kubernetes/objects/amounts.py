"""Parser of Kubernetes quantities: `500m` of a CPU, `16Gi` of memory, `"0.5"` of a GPU. Pure."""

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from runai.hub_service.scheduler.model.quantity import MilliGpu, gpu_text, milli_gpus

_BELOW_ONE = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_DECIMAL = {suffix: Decimal(1000) ** (i + 1) for i, suffix in enumerate("kMGTPE")}
_BINARY = {f"{suffix}i": Decimal(1024) ** (i + 1) for i, suffix in enumerate("KMGTPE")}
_FACTORS = {"": Decimal(1)} | _BELOW_ONE | _DECIMAL | _BINARY
_MIB = 1 << 20
_MOST = Decimal("1e24")
"""Upper bound of amounts: the API server accepts 1e9999, too large to compute with."""

UNLIMITED = "unlimited"


def _amount(text: str) -> Decimal:
    number, unit = _split(text)
    amount = max(-_MOST, min(Decimal(number), _MOST))
    return max(-_MOST, min(amount * _FACTORS[unit], _MOST))


def _split(text: str) -> tuple[str, str]:
    # The exponent of 1E3 is followed by a digit and stays.
    number = text.rstrip("numkKMGTPEi")
    return number, text[len(number) :]


def cpu_milli(text: str) -> int:
    """Return thousandths of a CPU, rounded up.

    >>> cpu_milli("500m"), cpu_milli("2"), cpu_milli("0.1"), cpu_milli("100500u")
    (500, 2000, 100, 101)
    """
    return math.ceil(_amount(text) * 1000)


def memory_mib(text: str) -> int:
    """Return MiB, rounded down.

    >>> memory_mib("16Gi"), memory_mib("1G"), memory_mib("1048576")
    (16384, 953, 1)
    """
    return int(_amount(text) // _MIB)


def whole(text: str) -> int:
    """Return a whole number of something, such as devices.

    >>> whole("8"), whole("1k")
    (8, 1000)
    """
    return int(_amount(text))


def times(text: str, count: int) -> str:
    """Return a multiple of an amount, in the same unit.

    >>> times("1500m", 2), times("2Gi", 8), times("1E3", 3), times("0.5", 3)
    ('3000m', '16Gi', '3000', '1.5')
    """
    number, unit = _split(text)
    return f"{Decimal(number) * count:f}{unit}"


def smaller(one: str, other: str) -> str:
    """Return the smaller of two amounts.

    >>> smaller("1Gi", "1G"), smaller("500m", "1")
    ('1G', '500m')
    """
    return one if _amount(one) <= _amount(other) else other


def larger(one: str, other: str) -> str:
    """Return the larger of two amounts.

    >>> larger("1Gi", "1G"), larger("500m", "1")
    ('1Gi', '1')
    """
    return one if _amount(one) >= _amount(other) else other


def gpus(value: Any) -> MilliGpu | None:  # noqa: ANN401  an int or a string, as the CRD allows
    """Return an amount of GPUs in milli-GPU; None is unlimited.

    >>> gpus(2), gpus("0.5"), gpus("unlimited")
    (2000, 500, None)
    """
    return None if value == UNLIMITED else milli_gpus(float(value))


def gpus_text(amount: int | None) -> str:
    """Format an amount of GPUs so that `gpus` can parse it.

    >>> gpus_text(2000), gpus_text(500), gpus_text(None)
    ('2', '0.5', 'unlimited')
    """
    return UNLIMITED if amount is None else gpu_text(amount)


def when(text: str) -> float:
    """Return a time of the API server in Unix seconds.

    >>> when("1970-01-01T00:01:00Z")
    60.0
    """
    return dt.datetime.fromisoformat(text).timestamp()


def requested(spec: Mapping[str, Any], resource: str, read: Callable[[str], int]) -> int:
    """Return the sum of a pod's container requests, as the kubelet computes it.

    Init containers run one after the other before the rest; sidecars (restartPolicy Always) keep
    running.
    """
    together, most = 0, 0
    for container in spec.get("initContainers", ()):
        amount = _of(container, resource, read)
        if container.get("restartPolicy") == "Always":
            together += amount
            most = max(most, together)
        else:
            most = max(most, together + amount)
    together += sum(_of(container, resource, read) for container in spec["containers"])
    stated = spec.get("resources", {}).get("requests", {}).get(resource)
    total = max(together, most) if stated is None else read(str(stated))
    overhead = spec.get("overhead", {}).get(resource)
    return total + (read(str(overhead)) if overhead else 0)


def _of(container: Mapping[str, Any], resource: str, read: Callable[[str], int]) -> int:
    resources = container.get("resources", {})
    # The API server copies limits to the requests of pods, but not of Jobs' pod templates.
    text = resources.get("requests", {}).get(resource, resources.get("limits", {}).get(resource))
    # In foreign custom resources a quantity may be a JSON number.
    return read(str(text)) if text else 0
