"""What a call costs: its own steps, whoever makes them, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from runai.hub_service.api.metering import asking, charge, charged, metered


class Asks:
    """Somebody whose turn it is when they `may`, or always."""

    def __init__(self, may: asyncio.Event | None = None) -> None:
        self.spent: list[float] = []
        self._may = may

    def spend(self, seconds: float) -> None:
        self.spent.append(seconds)

    async def turn(self) -> None:
        if self._may is not None:
            await self._may.wait()


async def test_the_steps_of_a_call_are_counted_and_not_its_waits(monkeypatch):
    now = 0.0
    monkeypatch.setattr("runai.hub_service.api.metering.thread_time", lambda: now)
    ana = Asks()

    async def call() -> str:
        nonlocal now
        now += 1
        await asyncio.sleep(0)
        now += 2
        return "answer"

    async def meanwhile() -> None:
        nonlocal now
        now += 100

    answer, _ = await asyncio.gather(metered(call(), ana), meanwhile())

    assert (answer, sum(ana.spent)) == ("answer", 3)


async def test_who_breaks_a_call_off_breaks_off_what_is_in_it():
    ended: list[str] = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await metered(call(), Asks())

    assert ended == ["cleaned up"]


async def test_what_is_made_while_it_is_sent_is_counted_for_who_asked():
    ana = Asks()

    async def page():
        yield b"a"
        yield b"b"

    token = asking.set(ana)
    sent = [piece async for piece in charged(page())]
    asking.reset(token)

    assert sent == [b"a", b"b"]
    assert len(ana.spent) >= 2


async def test_what_a_call_has_made_necessary_is_charged_to_who_asked():
    ana = Asks()
    charge(1.0)  # nobody asks here
    token = asking.set(ana)
    charge(0.25)
    asking.reset(token)

    assert ana.spent == [0.25]


async def test_a_call_goes_on_when_it_is_its_turn_and_can_be_broken_off_before():
    steps, may = list[str](), asyncio.Event()

    async def call() -> None:
        steps.append("begun")
        try:
            await asyncio.sleep(0)
            steps.append("went on")
        finally:
            steps.append("ended")

    def begun() -> asyncio.Future[None]:
        return asyncio.ensure_future(metered(call(), Asks(may)))

    task, never = begun(), begun()
    for _ in range(5):
        await asyncio.sleep(0)
    assert steps == ["begun", "begun"]
    never.cancel()
    await asyncio.gather(never, return_exceptions=True)
    may.set()
    await task

    assert never.cancelled()
    assert steps == ["begun", "begun", "ended", "went on", "ended"]
