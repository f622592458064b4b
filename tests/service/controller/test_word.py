"""A submitter is woken once, when a plan has decided about all of its workloads."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from runai.hub_service.controller.word import FEW, Word
from runai.hub_service.wire.schemas import SubmitRequest


async def waiting(word: Word, *workloads: str) -> asyncio.Task[None]:
    task = asyncio.ensure_future(word.on(workloads))
    await asyncio.sleep(0)
    return task


async def is_over(task: asyncio.Task[None]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return task.done()


@pytest.mark.parametrize(
    ("workloads", "given", "over"),
    [
        pytest.param(["a"], [{"a", "b"}], True, id="given with others"),
        pytest.param(["a"], [{"b"}], False, id="given to others only"),
        pytest.param(["a", "b"], [{"a"}], False, id="to one of them"),
        pytest.param(["a", "b"], [{"a"}, {"b", "c"}], True, id="to one after the other"),
        pytest.param([f"a-{n}" for n in range(FEW + 1)], [{"a-0"}], False, id="to one of many"),
    ],
)
async def test_submitter_wakes_when_all_its_workloads_are_decided(workloads, given, over):
    word = Word()
    task = await waiting(word, *workloads)

    for names in given:
        word.give(names)

    assert await is_over(task) is over
    assert word.is_awaited is not over
    task.cancel()


@pytest.mark.parametrize(
    ("saw", "over"),
    [
        pytest.param([{"a-0"}], True, id="the first of many"),
        pytest.param([{"b"}], False, id="a cycle that had begun before"),
        pytest.param([{"b"}, {"b"}], True, id="deleted meanwhile"),
    ],
)
async def test_submitter_wakes_at_end_of_cycle_that_saw_its_workloads(saw, over):
    word = Word()
    task = await waiting(word, *[f"a-{n}" for n in range(FEW + 1)])

    for names in saw:
        word.end(names)

    assert await is_over(task) is over
    task.cancel()


async def test_many_workloads_of_which_the_scheduler_saw_none_are_waited_for_until_one_is_told():
    word = Word()
    task = await waiting(word, *[f"a-{n}" for n in range(FEW + 1)])

    word.give({"a-0"})
    word.end({"b"})

    assert await is_over(task)


async def test_cancelled_submitter_stops_awaiting_decisions():
    word = Word()
    task = await waiting(word, "a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not word.is_awaited


async def test_partly_started_array_returns_queue_positions_of_waiting_jobs(simulated):
    ana = await simulated.client("ana")
    wish = SubmitRequest(name="exp", gpus=Decimal(1), array=6, command=["true"])

    reply = await ana.submit(wish)

    found = [(w.state, w.reason and w.reason.position) for w in reply.workloads]
    assert found == [("running", None)] * 4 + [("queued", 1), ("queued", 2)]
