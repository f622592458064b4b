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

from runai.hub_service.wire.amounts import seconds
from runai.hub_service.wire.schemas import ProjectPut, SubmitRequest
from runai.hub_service.wire.validation import checked

EnvPair = tuple[str, str]

_MIB_PER_UNIT: Final = {"m": Decimal(1), "g": Decimal(1024), "t": Decimal(1024 * 1024)}
_SIZE: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([mgt])(?:i?b?)\s*$", re.IGNORECASE)
_ENV_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
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
    matched = _SIZE.match(text)
    if matched is None:
        raise ValueError(f"'{text}' is no size: give a number and a unit, as in 4G or 4096M")
    mib = math.ceil(Decimal(matched[1]) * _MIB_PER_UNIT[matched[2].lower()])
    if mib < 1:
        raise ValueError(f"'{text}' is no memory at all: give at least 1M")
    return mib


class _ParamType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Base of the parameter types."""


class _Gpus(_ParamType):
    """GPUs as a decimal number."""

    name = "gpus"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str:
        """Parse a number from 0 upwards with at most three decimals."""
        try:
            gpus = Decimal(str(value))
        except InvalidOperation:
            self.fail(f"'{value}' is no number of GPUs: use 0.5, 1, 2, …", param, ctx)
        if not gpus.is_finite() or gpus < 0:
            self.fail(f"{value} GPUs cannot be: use a number from 0 upwards", param, ctx)
        if gpus != gpus.quantize(Decimal("0.001")):
            self.fail(f"{value} GPUs is too fine: use at most three decimals", param, ctx)
        return gpus


class _UnlimitedGpus(_Gpus):
    """GPUs, or the text `none` for no bound: None already means "option not given"."""

    name = "gpus|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str:
        """Parse a number or `none`."""
        if str(value).lower() == "none":
            return "none"
        return super().convert(value, param, ctx)


class _Memory(_ParamType):
    """Device memory in MiB."""

    name = "size"

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

    name = "low|normal|high|int"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """Parse a word or a number from 0 to 1000."""
        text = str(value).lower()
        if text in _PRIORITIES:
            return text
        if not text.isdecimal() or int(text) > _MAX_PRIORITY:
            wanted = "use low, normal, high or a number from 0 to 1000"
            self.fail(f"'{value}' is no priority: {wanted}", param, ctx)
        return int(text)


class _Length(_ParamType):
    """A duration in seconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert a duration such as 90m, 6h or 30d to seconds; reject zero."""
        try:
            length = int(str(seconds(value)))
        except ValueError as wrong:
            self.fail(f"'{value}' is no length of time: {wrong}", param, ctx)
        if not length:
            self.fail("no time at all: use 6h, 30d, …", param, ctx)
        return length


class _Env(_ParamType):
    """NAME=VALUE, or NAME to pass on the caller's own value."""

    name = "name=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> EnvPair:
        """Parse one pair; error messages never contain the value."""
        if isinstance(value, tuple):  # click converts a default a second time
            return value
        name, given, content = str(value).partition("=")
        if not _ENV_NAME.match(name):
            self.fail(f"'{name}' is no name of a variable: write NAME=VALUE", param, ctx)
        if not given:
            own = os.environ.get(name)
            if own is None:
                self.fail(f"{name} is not set here: write {name}=VALUE", param, ctx)
            return name, own
        return name, content


GPUS = _Gpus()
UNLIMITED_GPUS = _UnlimitedGpus()
MEMORY = _Memory()
PRIORITY = _Priority()
LENGTH = _Length()
ENV = _Env()


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
