"""Single flight: concurrent equal questions share one request to the hub.

Few requests run at once, and each answer is cached for a while.
"""

from __future__ import annotations

import asyncio

import pytest

from faults.virtual_time import in_virtual_time
from labs import Clock
from runai.hub_service.api.auth.single_flight import SingleFlight
from runai.hub_service.wire.errors import Unavailable

KEEP_S = 30.0


class Hub:
    """A hub that answers when the test says so, and counts its requests."""

    def __init__(self, at_once: int = 2, within_s: float | None = None) -> None:
        self.clock = Clock()
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.once = SingleFlight[str](
            at_once=at_once, ttl_s=KEEP_S, clock=self.clock, within_s=within_s
        )

    def who(self, name: str) -> asyncio.Task[str]:
        async def question() -> str:
            self.asked.append(name)
            await self.answers.wait()
            if self.error is not None:
                raise self.error
            return name.upper()

        return asyncio.ensure_future(self.once.get(name, question))


async def begun() -> None:
    """Let every task that can start do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_equal_questions_share_one_request_and_few_run_at_once():
    hub = Hub(at_once=2)
    names = [f"user-{n}" for n in range(50)] * 2
    many = [hub.who(name) for name in names]
    await begun()
    assert len(hub.asked) == 2
    hub.answers.set()

    assert await asyncio.gather(*many) == [name.upper() for name in names]
    assert hub.asked == names[:50]


async def test_an_answer_is_believed_for_as_long_as_was_said_since_it_was_asked_for():
    hub = Hub()
    first = hub.who("ana")
    await begun()
    hub.clock.at += 10  # the hub's answer takes 10 s
    hub.answers.set()
    await first

    hub.clock.at += KEEP_S - 10 - 1
    await hub.who("ana")
    assert hub.asked == ["ana"]
    hub.clock.at += 1
    await hub.who("ana")
    assert hub.asked == ["ana", "ana"]


async def test_an_error_is_everybodys_and_is_not_kept():
    hub = Hub()
    hub.error = Unavailable("away")
    hub.answers.set()
    for one in [hub.who("ana") for _ in range(3)]:
        with pytest.raises(Unavailable):
            await one
    hub.error = None

    assert await hub.who("ana") == "ANA"
    assert hub.asked == ["ana", "ana"]


async def test_cancelled_caller_leaves_the_answer_to_other_callers():
    hub = Hub()
    first, second = hub.who("ana"), hub.who("ana")
    await begun()
    first.cancel()
    hub.answers.set()

    assert await second == "ANA"
    assert hub.asked == ["ana"]


async def test_cached_answer_returns_while_another_request_is_pending():
    hub = Hub(at_once=1)
    hub.answers.set()
    await hub.who("ana")
    hub.answers.clear()
    waits = hub.who("bo")
    await begun()

    assert await hub.who("ana") == "ANA"
    assert not waits.done()
    await hub.once.close()
    with pytest.raises(asyncio.CancelledError):
        await waits


@in_virtual_time
async def test_a_question_waits_for_its_turn_and_answer_only_so_long():
    hub = Hub(at_once=1, within_s=10.0)
    asked, waits = hub.who("ana"), hub.who("bo")

    for each in (asked, waits):
        with pytest.raises(Unavailable, match="too long"):
            await each
    hub.answers.set()
    assert await hub.who("bo") == "BO", "the turn is free again"
