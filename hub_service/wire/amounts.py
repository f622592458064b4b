"""Durations such as 90m, 2h or 3d as whole seconds, and the bounds of requests.

Command line, magics and plain HTTP share them.
"""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, StringConstraints

_DURATION = re.compile(r"\s*(\d{1,9})\s*([smhd]?)\s*", re.IGNORECASE | re.ASCII)
_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_S = 10 * 366 * 86400
LONGEST_GRACE_S = 3600


def refuse_boolean(value: object) -> object:
    """Refuse True and False, which Python takes for 1 and 0; return anything else unchanged."""
    if isinstance(value, bool):
        raise ValueError("it must be a number")  # noqa: TRY004 - pydantic shows these alone
    return value


NUMBER = BeforeValidator(refuse_boolean)
"""For each int and float of a request, after its `Field`, whose bounds OpenAPI shows then."""


def seconds(value: object) -> object:
    """Convert text such as 2h to seconds; return other types for later validators.

    >>> [seconds(text) for text in ("90", "90s", "15m", "2h", "3 d")]
    [90, 90, 900, 7200, 259200]

    Raises:
        ValueError: it is a text and no duration, or a boolean.
    """
    if not isinstance(value, str):
        return refuse_boolean(value)
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError("give a number and a unit, such as 90m, 2h or 3d")
    return int(match[1]) * _PER_UNIT[match[2].lower()]


def clock_text(seconds: int) -> str:
    """Format a limit as users write it: 90s, 20m, 8h; the largest unit that is exact.

    >>> [clock_text(seconds) for seconds in (90, 1200, 28800, 172800, 5400)]
    ['90s', '20m', '8h', '48h', '90m']
    """
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


DurationText = Annotated[str, StringConstraints(pattern=r"^\s*0*[1-9]\d{0,7}\s*[smhdSMHD]?\s*$")]
"""Input of `seconds` as OpenAPI describes it."""
_Bounded = Annotated[int, Field(ge=1, le=LONGEST_S)]
Seconds = Annotated[
    _Bounded, BeforeValidator(seconds, json_schema_input_type=_Bounded | DurationText)
]
"""A duration of at least a second and at most ten years."""
_Protection = Annotated[int, Field(ge=0, le=LONGEST_S)]
Protection = Annotated[
    _Protection, BeforeValidator(seconds, json_schema_input_type=_Protection | DurationText)
]
"""A duration of at most ten years; 0 is none."""
_Grace = Annotated[int, Field(ge=0, le=LONGEST_GRACE_S)]
Grace = Annotated[_Grace, BeforeValidator(seconds, json_schema_input_type=_Grace | DurationText)]
"""A duration of at most an hour; 0 is none."""


MOST_GPUS: Final = 100_000
"""Maximum for one worker; of CPUs too."""
MOST_MEMORY_MIB: Final = 1_000_000_000
"""Maximum for one worker's GPU."""
MOST_LINES: Final = 1_000_000
"""Maximum of the last lines of a log."""
MOST_WORKERS: Final = 10_000
"""Maximum for one request, all workloads of an array together."""
