"""Click parameter types for GPUs, memory, priorities, durations and environment variables.

They do no I/O, except that `--env NAME` reads the value from this process's environment. The
service checks whether an amount is available.
"""

import math
import os
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import click

from runai.hub_service.wire.amounts import (
    LONGEST_GRACE_S,
    LONGEST_S,
    MOST_GPUS,
    MOST_LINES,
    MOST_MEMORY_MIB,
    MOST_WORKERS,
    clock_text,
    seconds,
)
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import ProjectPut, SubmitRequest
from runai.hub_service.wire.validation import checked

EnvPair = tuple[str, str]

_MIB_PER_UNIT: Final = {"m": Decimal(1), "g": Decimal(1024), "t": Decimal(1024 * 1024)}
_SIZE: Final = re.compile(
    r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*([mgt])(?:i?b?)\s*", re.IGNORECASE | re.ASCII
)
_TRACE_SECOND: Final = re.compile(r"[0-9]{1,12}")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_MAX_QUOTED_LENGTH: Final = 60
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PRIORITIES: Final = ("low", "normal", "high")
_MAX_PRIORITY: Final = 1000


def parse_memory_mib(text: str) -> int:
    """Convert a size with a unit to MiB, rounded up; G equals GiB.

    >>> parse_memory_mib("4G"), parse_memory_mib("4GiB"), parse_memory_mib("4096M")
    (4096, 4096, 4096)
    >>> parse_memory_mib("0.3G")
    308

    Raises:
        ValueError: it is no size, has no unit, or is 0.
    """
    matched = _SIZE.fullmatch(text)
    if matched is None:
        raise ValueError(
            f"{quoted(text)} is not a valid size: give a number and a unit, as in 4G or 4096M"
        )
    mib = math.ceil(Decimal(matched[1]) * _MIB_PER_UNIT[matched[2].lower()])
    if mib < 1:
        raise ValueError(f"{quoted(text)} is no memory at all: give at least 1M")
    if mib > MOST_MEMORY_MIB:
        raise ValueError(f"{quoted(text)} is more than any GPU has: give at most 900T")
    return mib


def quoted(value: object) -> str:
    """Return what a user typed in quotes, at most 60 characters of it."""
    return f"'{_short(value)}'"


def _short(value: object) -> str:
    return printable(str(value), _MAX_QUOTED_LENGTH)


class _ParamType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Base of the parameter types, each with its placeholder in the help."""

    name = "value"
    metavar = ""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the placeholder of a value."""
        return self.metavar or None


class _Gpus(_ParamType):
    """GPUs as a decimal number."""

    metavar = "AMOUNT"
    unit = "GPUs"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str:
        """Parse a number from 0 upwards with at most three decimals."""
        text = str(value)
        try:
            gpus = Decimal(text) if text.isascii() else None
        except InvalidOperation:
            gpus = None
        if gpus is None:
            text = f"{quoted(text)} is not a valid number of {self.unit}: use 0.5, 1, 2, …"
            self.fail(text, param, ctx)
        if not gpus.is_finite() or gpus < 0:
            self.fail(
                f"{_short(text)} {self.unit} cannot be: use a number from 0 upwards", param, ctx
            )
        if gpus > MOST_GPUS:
            self.fail(f"{_short(text)} {self.unit} cannot be: use at most {MOST_GPUS}", param, ctx)
        if gpus != gpus.quantize(Decimal("0.001")):
            self.fail(
                f"{_short(text)} {self.unit} is too fine: use at most three decimals", param, ctx
            )
        return gpus


class _Cpus(_Gpus):
    """CPUs as a decimal number."""

    unit = "CPUs"


class _UnlimitedGpus(_Gpus):
    """GPUs, or the text `none` for no bound: None already means "option not given"."""

    metavar = "AMOUNT|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str:
        """Parse a number or `none`."""
        if str(value).lower() == "none":
            return "none"
        return super().convert(value, param, ctx)


class _Quota(_UnlimitedGpus):
    """GPUs, `none`, or a table by GPU type: `h100=2,*=4`."""

    metavar = "AMOUNT|none|TYPE=AMOUNT,..."

    def convert(  # type: ignore[override]
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str | dict[str, Decimal | None]:
        """Parse a number, `none` or a table."""
        text = str(value)
        if "=" not in text:
            return super().convert(text, param, ctx)
        table: dict[str, Decimal | None] = {}
        for part in text.split(","):
            name, sign, amount = (word.strip() for word in part.partition("="))
            if not sign or not name:
                self.fail(f"{quoted(part)} is no quota of a GPU type: use h100=2,*=4", param, ctx)
            if name in table:
                self.fail(f"the quota of {quoted(name)} is given twice", param, ctx)
            gpus = super().convert(amount, param, ctx)
            table[name] = gpus if isinstance(gpus, Decimal) else None
        return table


class _Memory(_ParamType):
    """Device memory in MiB."""

    metavar = "AMOUNT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse 4G, 4GiB or 4096M."""
        try:
            return parse_memory_mib(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


class _Priority(_ParamType):
    """low, normal, high, or a number for project admins."""

    metavar = "low|normal|high|N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """Parse a word or a number from 0 to 1000."""
        text = str(value).lower()
        if text in _PRIORITIES:
            return text
        if _NUMBER.fullmatch(text) is None or int(text) > _MAX_PRIORITY:
            expected = "use low, normal, high or a number from 0 to 1000"
            self.fail(f"{quoted(value)} is no priority: {expected}", param, ctx)
        return int(text)


class _Duration(_ParamType):
    """A duration such as 30s, 20m, 8h or 2d, in seconds; a bare number is seconds."""

    metavar = "DURATION"

    def __init__(self, min_s: int = 1, max_s: int = LONGEST_S, *, or_none: bool = False) -> None:
        """Accept `min_s` to `max_s` seconds, and the word `none` if asked."""
        self.min_s, self.max_s, self.or_none = min_s, max_s, or_none
        if or_none:
            self.metavar = "DURATION|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Convert a duration to seconds."""
        if self.or_none and str(value).lower() == "none":
            return "none"
        text = str(value)
        try:
            length = int(str(seconds(text)))
        except ValueError as wrong:
            self.fail(f"{quoted(text)} is not a valid duration: {wrong}", param, ctx)
        if length < self.min_s:
            self.fail(f"{quoted(text)} is too short: use at least {self.min_s}s", param, ctx)
        if length > self.max_s:
            self.fail(f"{quoted(text)} is too long: use at most {_longest(self.max_s)}", param, ctx)
        return length


def _longest(max_s: int) -> str:
    return "ten years (3660d)" if max_s == LONGEST_S else clock_text(max_s)


class _TraceTime(_ParamType):
    """A moment of a trace: seconds, of as many digits as a trace may have, or a duration."""

    metavar = "DURATION"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert to seconds since the trace's zero."""
        text = str(value)
        if _TRACE_SECOND.fullmatch(text):
            return int(text)
        return int(ANY_DURATION.convert(text, param, ctx))


class _Env(_ParamType):
    """NAME=VALUE, or NAME to pass on the caller's own value."""

    metavar = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> EnvPair:
        """Parse one pair; error messages never contain the value."""
        if isinstance(value, tuple):  # click converts a default a second time
            return value
        name, equals, content = str(value).partition("=")
        if not _ENV_NAME.fullmatch(name):
            self.fail(f"{quoted(name)} is not a valid variable: write NAME=VALUE", param, ctx)
        if not equals:
            own = os.environ.get(name)
            if own is None:
                self.fail(f"{name} is not set here: write {name}=VALUE", param, ctx)
            return name, own
        return name, content


GPUS = _Gpus()
CPUS = _Cpus()
UNLIMITED_GPUS = _UnlimitedGpus()
QUOTA = _Quota()
MEMORY = _Memory()
PRIORITY = _Priority()
DURATION = _Duration()
ANY_DURATION = _Duration(min_s=0)
DURATION_OR_NONE = _Duration(or_none=True)
GRACE = _Duration(min_s=0, max_s=LONGEST_GRACE_S)
TRACE_TIME = _TraceTime()
ENV = _Env()
WORKERS = click.IntRange(min=1, max=MOST_WORKERS)
WORKER_INDEX = click.IntRange(min=0, max=MOST_WORKERS - 1)
LINES = click.IntRange(min=0, max=MOST_LINES)


def submit_request(**options: Any) -> SubmitRequest:
    """Return a submission without the options that are None; the service has defaults for them.

    Raises:
        InvalidRequest: an option's value is invalid.
    """
    return checked(SubmitRequest, {k: v for k, v in options.items() if v is not None})


def project_put(**options: Any) -> ProjectPut:
    """Return a change to a project with every given option; None means "none".

    Raises:
        InvalidRequest: an option's value is invalid.
    """
    return checked(ProjectPut, options)
