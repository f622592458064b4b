"""The Event queue: Events yield to other API calls, but not for ever.

Pure: a fake API that answers on demand stands for a busy one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from clusters.kubernetes.parsed_objects import a_pod
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.events.event_queue import PARALLEL_SENDERS, EventQueue


class SlowApi:
    """A fake API that answers one call each time it is released."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._turns = asyncio.Semaphore(0)

    async def create(self, _path: str, body: Mapping[str, Any]) -> None:
        self.messages.append(body["message"])
        await self._turns.acquire()

    async def answer(self, calls: int = 1) -> None:
        for _ in range(calls):
            self._turns.release()
        await run_ready_tasks()


async def run_ready_tasks() -> None:
    """Let every task run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_event_queue_sends_few_events_while_a_plan_is_executed() -> None:
    api = SlowApi()
    queue = EventQueue(cast("Api", api))
    running = asyncio.create_task(queue.run())
    with queue.throttled():
        for number in range(10):
            queue.enqueue(a_pod("one"), "Scheduled", str(number))
        await run_ready_tasks()
        assert len(api.messages) == 1, "one Event at a time while a plan is executed"
        await api.answer()
        assert len(api.messages) == 2, "the next Event follows, however long the plan takes"
    await run_ready_tasks()
    assert len(api.messages) == 1 + PARALLEL_SENDERS
    await api.answer(10)
    assert sorted(api.messages) == [str(number) for number in range(10)], (
        "none is lost, or sent twice"
    )
    running.cancel()


async def test_event_queue_sends_events_of_stopping_pods_first() -> None:
    api = SlowApi()
    queue = EventQueue(cast("Api", api))
    for number in range(PARALLEL_SENDERS):
        queue.enqueue(a_pod("one"), "Scheduled", str(number))
    queue.enqueue(a_pod("two"), "Preempted", "for bob", is_ending=True)
    running = asyncio.create_task(queue.run())
    await run_ready_tasks()
    assert api.messages == ["for bob", *map(str, range(PARALLEL_SENDERS - 1))], (
        "the remaining Events are sent oldest first"
    )
    running.cancel()
