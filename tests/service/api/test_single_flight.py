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

TTL_S = 30.0


class ControlledHub:
    """A hub that answers when the test says so, and counts its requests."""

    def __init__(self, at_once: int = 2, within_s: float | None = None) -> None:
        self.clock = Clock()
        self.requests: list[str] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.single_flight = SingleFlight[str](
            at_once=at_once, ttl_s=TTL_S, clock=self.clock, within_s=within_s
        )

    def look_up(self, name: str) -> asyncio.Task[str]:
        async def request_user() -> str:
            self.requests.append(name)
            await self.answers.wait()
            if self.error is not None:
                raise self.error
            return name.upper()

        return asyncio.ensure_future(self.single_flight.get(name, request_user))


async def let_tasks_start() -> None:
    """Let every task that can start do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_equal_hub_lookups_share_one_request_and_few_requests_run_at_once():
    hub = ControlledHub(at_once=2)
    names = [f"user-{n}" for n in range(50)] * 2
    lookups = [hub.look_up(name) for name in names]
    await let_tasks_start()
    assert len(hub.requests) == 2
    hub.answers.set()

    assert await asyncio.gather(*lookups) == [name.upper() for name in names]
    assert hub.requests == names[:50]


async def test_hub_lookup_answer_is_cached_from_the_time_of_its_request():
    hub = ControlledHub()
    first = hub.look_up("ana")
    await let_tasks_start()
    hub.clock.at += 10  # the hub's answer takes 10 s
    hub.answers.set()
    await first

    hub.clock.at += TTL_S - 10 - 1
    await hub.look_up("ana")
    assert hub.requests == ["ana"]
    hub.clock.at += 1
    await hub.look_up("ana")
    assert hub.requests == ["ana", "ana"]


async def test_hub_lookup_error_reaches_every_waiting_caller_and_is_not_cached():
    hub = ControlledHub()
    hub.error = Unavailable("away")
    hub.answers.set()
    for task in [hub.look_up("ana") for _ in range(3)]:
        with pytest.raises(Unavailable):
            await task
    hub.error = None

    assert await hub.look_up("ana") == "ANA"
    assert hub.requests == ["ana", "ana"]


async def test_cancelled_caller_does_not_cancel_a_shared_hub_lookup():
    hub = ControlledHub()
    first, second = hub.look_up("ana"), hub.look_up("ana")
    await let_tasks_start()
    first.cancel()
    hub.answers.set()

    assert await second == "ANA"
    assert hub.requests == ["ana"]


async def test_cached_hub_lookup_answer_returns_while_a_different_lookup_is_pending():
    hub = ControlledHub(at_once=1)
    hub.answers.set()
    await hub.look_up("ana")
    hub.answers.clear()
    pending_lookup = hub.look_up("bo")
    await let_tasks_start()

    assert await hub.look_up("ana") == "ANA"
    assert not pending_lookup.done()
    await hub.single_flight.close()
    with pytest.raises(asyncio.CancelledError):
        await pending_lookup


@in_virtual_time
async def test_hub_lookup_times_out_while_queued_or_unanswered():
    hub = ControlledHub(at_once=1, within_s=10.0)
    unanswered, queued = hub.look_up("ana"), hub.look_up("bo")

    for lookup in (unanswered, queued):
        with pytest.raises(Unavailable, match="too long"):
            await lookup
    hub.answers.set()
    assert await hub.look_up("bo") == "BO", "the turn is free again"
