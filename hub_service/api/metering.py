"""What a call costs: the processor time of its own steps, while which the loop serves nobody else.

Time in which it waits for something is not counted, nor what other programs take of the machine.
Knows nothing of calls, nor whose turn it is; used by `fair_use`, and by `page_reply` for what is
rendered while it is sent, which is another task's work.
"""

import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from time import thread_time
from typing import Any, TypeVar

__all__ = ["charge", "charged", "metered", "spending", "turns"]

T = TypeVar("T")

Spend = Callable[[float], None]
Turn = Callable[[], Awaitable[None]]


async def _at_once() -> None:
    """Begin at once."""


spending: ContextVar[Spend | None] = ContextVar("spending", default=None)
"""Who is charged for what is done in this context; None: nobody."""
turns: ContextVar[Turn] = ContextVar("turns", default=_at_once)
"""Waits until it is their turn."""


@types.coroutine
def metered(
    work: Coroutine[Any, Any, T], spend: Spend, turn: Turn = _at_once
) -> Generator[Any, Any, T]:
    """Do the work, telling `spend` after each step how many seconds that took.

    Before each, but the first, it waits for its `turn`.
    """
    step: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        began = thread_time()
        try:
            waits_for = step(given)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            # What was thrown knows by its trace that we had it: a circle for each stream that ends.
            given, step = None, work.send
            spend(thread_time() - began)
        try:
            given = yield waits_for
            yield from turn().__await__()
        except BaseException as thrown:  # noqa: BLE001  cancelled, or closed: the work's business
            given, step = thrown, work.throw


def charge(seconds: float) -> None:
    """Charge whoever is asking for what had to be done elsewhere because of the call."""
    spend = spending.get()
    if spend is not None:
        spend(seconds)


async def charged(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass a body on; whoever asked for it is charged for its making."""
    spend, source = spending.get(), aiter(body)
    while (piece := await _piece(source, spend)) is not None:
        yield piece


async def _piece(source: AsyncIterator[bytes], spend: Spend | None) -> bytes | None:
    making = _next(source)
    return await (making if spend is None else metered(making, spend, turns.get()))


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
