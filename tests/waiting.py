"""Wait for a condition with a deadline, instead of sleeping.

The one place of the suite that polls. Tests reach it as the fixtures `eventually` and
`eventually_async`; fixtures of parts may import it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

WITHIN_SECONDS = 120.0  # generous: a busy machine imports for a minute; a passing condition ends it
PAUSE_SECONDS = 0.02

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = WITHIN_SECONDS, what: str = "") -> T:
    """Return the condition's first truthy value; an AssertionError in it counts as "not yet".

    Raises:
        AssertionError: the deadline passed; says what was waited for and the last outcome.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            outcome: object = condition()
            if outcome:
                return outcome  # type: ignore[return-value]
        except AssertionError as failed:
            outcome = failed
        if time.monotonic() > deadline:
            raise AssertionError(_too_late(condition, within, what, outcome))
        time.sleep(PAUSE_SECONDS)


async def eventually_async(
    condition: Callable[[], object], *, within: float = WITHIN_SECONDS, what: str = ""
) -> Any:
    """Do the same without blocking the loop; the condition may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        try:
            outcome: object = condition()
            if inspect.isawaitable(outcome):
                outcome = await outcome
            if outcome:
                return outcome
        except AssertionError as failed:
            outcome = failed
        if time.monotonic() > deadline:
            raise AssertionError(_too_late(condition, within, what, outcome))
        await asyncio.sleep(PAUSE_SECONDS)


def _too_late(condition: object, within: float, what: str, outcome: object) -> str:
    description = what or getattr(condition, "__qualname__", repr(condition))
    return f"not within {within:g} s: {description}; last: {outcome!r}"
