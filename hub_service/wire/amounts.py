"""Amounts as people write them: GPUs, CPUs, memory, durations and priorities, with their bounds.

Command line, magics, forms, the admins' files, annotations, traces and plain HTTP share these
parsers. Each takes a text or a number and raises ValueError with what is possible, as the end of a
sentence: "use a number such as 0.5 or 2".
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final, Literal, SupportsFloat

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

MAX_TEXT_LENGTH: Final = 40
"""Longer texts are refused unread: parsing stays cheap and exact."""
MOST_GPUS: Final = 100_000
"""Maximum for one worker or project; of CPUs too."""
MOST_MEMORY_MIB: Final = 1_000_000_000
"""Maximum for one worker, and for one GPU."""
MOST_LINES: Final = 1_000_000
"""Maximum of the last lines of a log."""
MOST_WORKERS: Final = 10_000
"""Maximum for one request, all workloads of an array together."""
LONGEST_S: Final = 10 * 366 * 86400
LONGEST_GRACE_S: Final = 3600
MAX_PRIORITY: Final = 1000

_SIGNS: Final = {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8"}
_FLAGS: Final = re.IGNORECASE | re.ASCII  # else [s] matches U+017F, a long s, too
_NUMBER: Final = r"([0-9]{0,30}(?:[.,][0-9]{1,30})?|[0-9]{1,30}[.,])"
_EXPONENT: Final = re.compile(r"-?[0-9.]+e[+-]?[0-9]+", _FLAGS)
_DURATION: Final = re.compile(r"\s*([0-9]{1,9})\s*([smhd]?)\s*", _FLAGS)
_SECONDS_PER_UNIT: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([mgt])(?:i?b?)", _FLAGS)
_MIB_PER_UNIT: Final = {"m": 1, "g": 1024, "t": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class AmountKind:
    """A kind of amount: its name in sentences, its placeholder in the help, and its parser."""

    noun: str
    metavar: str
    parse: Callable[[object], object]


def refuse_boolean(value: object) -> object:
    """Refuse True and False, which Python takes for 1 and 0; return anything else unchanged."""
    if isinstance(value, bool):
        raise ValueError("it must be a number")  # noqa: TRY004 - pydantic shows these alone
    return value


NUMBER = BeforeValidator(refuse_boolean)
"""For each int and float of a request, after its `Field`, whose bounds OpenAPI shows then."""


def _text_of(value: object) -> str | None:
    """Return a text or number as text, a sign as 1/2; None: it is neither, or too long."""
    if isinstance(value, int) and (isinstance(value, bool) or abs(value) >= 10**MAX_TEXT_LENGTH):
        return None  # Python writes no integers of more than 4300 digits
    if not isinstance(value, str | SupportsFloat):
        return None
    text = str(value).strip()
    if not isinstance(value, str) and _EXPONENT.fullmatch(text):
        text = f"{Decimal(text):f}"  # 1e-07 is 0.0000001, as people write numbers
    if len(text) > MAX_TEXT_LENGTH:
        return None
    for sign, spelt in _SIGNS.items():
        text = text.replace(sign, spelt)
    return text


def _decimal(value: object, unit: str) -> Decimal:
    """Parse a number, a fraction or a percentage to at most three decimals.

    A third is 0.333, rounded down: nobody gets more than is recorded.
    """
    text = _text_of(value)
    pattern = rf"(-?){_NUMBER}(?:\s*/\s*([0-9]{{1,9}}))?\s*(%?)\s*(?:{unit}s?)?"
    matched = None if text is None else re.fullmatch(pattern, text, _FLAGS)
    if matched is None or not matched[2] or not int(matched[3] or 1):
        raise ValueError("use a number such as 0.5 or 2")
    number = Fraction(matched[2].replace(",", ".").rstrip("."))
    if matched[1] and number:
        raise ValueError("use a number from 0 upwards")
    part = number / int(matched[3] or 1) / (100 if matched[4] else 1)
    if part > MOST_GPUS:
        raise ValueError(f"use at most {MOST_GPUS}")
    milli = math.floor(part * 1000)
    is_exact = not (matched[3] or matched[4])
    if (is_exact and milli != part * 1000) or (part and not milli):
        raise ValueError("use at most three decimals")
    return Decimal(milli) / 1000


def gpus(value: object) -> Decimal:
    """Parse a number of GPUs.

    >>> [str(gpus(text)) for text in ("0.35", "0,35", "½", "1/3", "50 %", "2 GPUs")]
    ['0.35', '0.35', '0.5', '0.333', '0.5', '2']

    Raises:
        ValueError: it is none, negative, too large, or finer than a thousandth.
    """
    return _decimal(value, "gpu")


def cpus(value: object) -> Decimal:
    """Parse a number of CPUs, as `gpus` does.

    Raises:
        ValueError: as for `gpus`.
    """
    return _decimal(value, "cpu")


def size_mib(text: str) -> int:
    """Convert a size with a unit to MiB, rounded up; G equals GiB.

    >>> [size_mib(text) for text in ("4G", "4 GiB", "4096M", "0.3G", "7,5G")]
    [4096, 4096, 4096, 308, 7680]

    Raises:
        ValueError: it is no size, has no unit, is 0 or too large.
    """
    matched = _SIZE.fullmatch(_text_of(text) or "")
    if matched is None or not matched[1]:
        raise ValueError("give a number and a unit, as in 4G or 4096M")
    number = Fraction(matched[1].replace(",", ".").rstrip("."))
    mib = math.ceil(number * _MIB_PER_UNIT[matched[2].lower()])
    if mib < 1:
        raise ValueError("give at least 1M")
    if mib > MOST_MEMORY_MIB:
        raise ValueError("give at most 900T")
    return mib


def memory_mib(value: object) -> object:
    """Convert a size as `size_mib`; return a number, which is MiB already, for later validators.

    Raises:
        ValueError: as for `size_mib`; or it is a boolean.
    """
    return size_mib(value) if isinstance(value, str) else refuse_boolean(value)


def seconds(value: object) -> object:
    """Convert text such as 2h to seconds; return other types for later validators.

    >>> [seconds(text) for text in ("90", "90s", "15m", "2h", "3 d")]
    [90, 90, 900, 7200, 259200]

    Raises:
        ValueError: it is a text and no duration, or a boolean.
    """
    if not isinstance(value, str):
        return refuse_boolean(value)
    match = _DURATION.fullmatch(value) if len(value) <= MAX_TEXT_LENGTH else None
    if match is None:
        raise ValueError("give a number and a unit, such as 90m, 2h or 3d")
    return int(match[1]) * _SECONDS_PER_UNIT[match[2].lower()]


def clock_text(seconds: int) -> str:
    """Format a limit as users write it: 90s, 20m, 8h; the largest unit that is exact.

    >>> [clock_text(seconds) for seconds in (90, 1200, 28800, 172800, 5400)]
    ['90s', '20m', '8h', '48h', '90m']
    """
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def bounded_seconds(value: object, min_s: int = 1, max_s: int = LONGEST_S) -> object:
    """Convert a duration to seconds within bounds, as `seconds` does.

    Raises:
        ValueError: it is no duration, too short or too long.
    """
    length = seconds(value)
    if isinstance(length, int) and length < min_s:
        raise ValueError(f"use at least {min_s}s")
    if isinstance(length, int) and length > max_s:
        longest = "ten years (3660d)" if max_s == LONGEST_S else clock_text(max_s)
        raise ValueError(f"use at most {longest}")
    return length


def priority(value: object) -> object:
    """Parse low, normal, high, or a number from 0 to 1000.

    >>> priority("High"), priority("60"), priority(60)
    ('high', 60, 60)

    Raises:
        ValueError: it is neither.
    """
    text = (_text_of(value) or "").lower()
    if text in {"low", "normal", "high"}:
        return text
    if re.fullmatch(r"[0-9]{1,4}", text) is None or int(text) > MAX_PRIORITY:
        raise ValueError("use low, normal, high or a number from 0 to 1000")
    return int(text)


GPUS: Final = AmountKind("number of GPUs", "AMOUNT", gpus)
CPUS: Final = AmountKind("number of CPUs", "AMOUNT", cpus)
MEMORY: Final = AmountKind("size", "AMOUNT", memory_mib)
PRIORITY: Final = AmountKind("priority", "low|normal|high|N", priority)
DURATION: Final = AmountKind("duration", "DURATION", bounded_seconds)
ANY_DURATION: Final = AmountKind("duration", "DURATION", partial(bounded_seconds, min_s=0))
GRACE: Final = AmountKind(
    "duration", "DURATION", partial(bounded_seconds, min_s=0, max_s=LONGEST_GRACE_S)
)

_MILLI_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MOST_GPUS, "multipleOf": 0.001},
        {"type": "string", "pattern": r"^[0-9]{1,5}(\.[0-9]{1,3})?$"},
    ]
}
Gpus = Annotated[
    Decimal, BeforeValidator(gpus), WithJsonSchema(_MILLI_SCHEMA, mode="validation"), GPUS
]
"""GPUs of one worker or of a project. The service checks: whole, or a fraction below 1."""
Cpus = Annotated[
    Decimal, BeforeValidator(cpus), WithJsonSchema(_MILLI_SCHEMA, mode="validation"), CPUS
]
"""CPUs of one worker, in thousandths too."""

SizeText = Annotated[str, StringConstraints(pattern=r"^\s*[0-9.,]{1,13}\s*[mgtMGT][iI]?[bB]?\s*$")]
"""Input of `memory_mib` as OpenAPI describes it."""
_GpuMemory = Annotated[int, Field(ge=1, le=MOST_MEMORY_MIB)]
GpuMemory = Annotated[
    _GpuMemory,
    BeforeValidator(memory_mib, json_schema_input_type=_GpuMemory | SizeText),
    MEMORY,
]
"""MiB of one GPU's memory."""
_Memory = Annotated[int, Field(ge=0, le=MOST_MEMORY_MIB)]
Memory = Annotated[
    _Memory, BeforeValidator(memory_mib, json_schema_input_type=_Memory | SizeText), MEMORY
]
"""MiB of main memory; 0 is none."""

DurationText = Annotated[str, StringConstraints(pattern=r"^\s*0*[1-9]\d{0,7}\s*[smhdSMHD]?\s*$")]
"""Input of `seconds` as OpenAPI describes it."""
_Bounded = Annotated[int, Field(ge=1, le=LONGEST_S)]
Seconds = Annotated[
    _Bounded,
    BeforeValidator(bounded_seconds, json_schema_input_type=_Bounded | DurationText),
    DURATION,
]
"""A duration of at least a second and at most ten years."""
_Protection = Annotated[int, Field(ge=0, le=LONGEST_S)]
Protection = Annotated[
    _Protection,
    BeforeValidator(ANY_DURATION.parse, json_schema_input_type=_Protection | DurationText),
]
"""A duration of at most ten years; 0 is none."""
_Grace = Annotated[int, Field(ge=0, le=LONGEST_GRACE_S)]
Grace = Annotated[
    _Grace, BeforeValidator(GRACE.parse, json_schema_input_type=_Grace | DurationText), GRACE
]
"""A duration of at most an hour; 0 is none."""

_Priority = Literal["low", "normal", "high"] | Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
Priority = Annotated[
    _Priority, BeforeValidator(priority, json_schema_input_type=_Priority), PRIORITY
]

WorkerCount = Annotated[int, Field(ge=1, le=MOST_WORKERS), NUMBER]
