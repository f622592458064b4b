"""What a call costs: the processor time of its own steps, while which the loop serves nobody else.

Time in which it waits for something is not counted, nor what other programs take of the machine.
Knows nothing of calls, nor whose turn it is; used by `fair_use`, and by `page_reply` for what is
rendered while it is sent, which is another task's work.
"""

import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import ContextVar
from time import thread_time
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Asking(Protocol):
    """Who pays for what is done, and when that may go on."""

    def spend(self, seconds: float) -> None:
        """Note that a step has taken so long."""

    async def turn(self) -> None:
        """Wait until the next step may be taken."""


asking: ContextVar[Asking | None] = ContextVar("asking", default=None)
"""For whom is done what is done in this context; None: for nobody in particular."""


@types.coroutine
def metered(work: Coroutine[Any, Any, T], who: Asking) -> Generator[Any, Any, T]:
    """Do the work for `who` asks: they are told after each step how many seconds that took.

    Before each, but the first, it waits for their turn.
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
            who.spend(thread_time() - began)
        try:
            given = yield waits_for
            yield from who.turn().__await__()
        except BaseException as thrown:  # noqa: BLE001  cancelled, or closed: the work's business
            given, step = thrown, work.throw


def charge(seconds: float) -> None:
    """Charge whoever is asking for what had to be done elsewhere because of the call."""
    who = asking.get()
    if who is not None:
        who.spend(seconds)


async def charged(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass a body on; whoever asked for it is charged for its making."""
    who, source = asking.get(), aiter(body)
    while (piece := await _piece(source, who)) is not None:
        yield piece


async def _piece(source: AsyncIterator[bytes], who: Asking | None) -> bytes | None:
    making = _next(source)
    return await (making if who is None else metered(making, who))


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
