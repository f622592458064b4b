"""Click parameter types of commands other than `submit`: quotas, trace times, bounds; messages.

They do no I/O. The service checks whether an amount is available.
"""

import re
from decimal import Decimal
from typing import Any, Final

import click

from runai.hub_service.client.request_options import AmountType, quoted
from runai.hub_service.wire import amounts
from runai.hub_service.wire.amounts import MOST_LINES, MOST_WORKERS
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.validation import checked

_TRACE_SECOND: Final = re.compile(r"[0-9]{1,12}")


class _Quota(AmountType):
    """GPUs, `none`, or a table by GPU type: `h100=2,*=4`."""

    def __init__(self) -> None:
        """Name the three forms."""
        super().__init__(amounts.GPUS, or_none=True)
        self.metavar = "AMOUNT|none|TYPE=AMOUNT,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal | str | dict[str, Decimal | None]:
        """Parse a number, `none` or a table."""
        text = str(value)
        if "=" not in text:
            return super().convert(text, param, ctx)  # type: ignore[no-any-return]
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


class _TraceTime(AmountType):
    """A moment of a trace: seconds, of as many digits as a trace may have, or a duration."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Convert to seconds since the trace's zero."""
        text = str(value)
        if _TRACE_SECOND.fullmatch(text):
            return int(text)
        return int(super().convert(text, param, ctx))


GPUS = AmountType(amounts.GPUS)
UNLIMITED_GPUS = AmountType(amounts.GPUS, or_none=True)
QUOTA = _Quota()
DURATION = AmountType(amounts.DURATION)
ANY_DURATION = AmountType(amounts.ANY_DURATION)
DURATION_OR_NONE = AmountType(amounts.DURATION, or_none=True)
TRACE_TIME = _TraceTime(amounts.ANY_DURATION)
WORKERS = click.IntRange(min=1, max=MOST_WORKERS)
WORKER_INDEX = click.IntRange(min=0, max=MOST_WORKERS - 1)
LINES = click.IntRange(min=0, max=MOST_LINES)


def project_put(**options: Any) -> ProjectPut:
    """Return a change to a project with every given option; None means "none".

    Raises:
        InvalidRequest: an option's value is invalid.
    """
    return checked(ProjectPut, options)
