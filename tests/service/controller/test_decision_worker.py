"""The decision worker: equal plans over a pipe, and what its failures cost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import job, project, snapshot
from faults.virtual_time import in_virtual_time
from inline_decisions import Fault, FaultyPipe, InlinePipe, inline_scheduler
from runai.hub_service.controller.decision_messages import (
    Compare,
    Decide,
    Request,
    difference,
    patched,
)
from runai.hub_service.controller.decision_worker import DecisionWorker, ProcessPipe
from runai.hub_service.scheduler import Plan, Snapshot, compare, decide, explain, forecast
from runai.hub_service.wire.errors import Unavailable
from strategies import snapshots
from waiting import eventually_async

PROJECTS = [project("vision", 1), project("nlp", 1)]
RUNNING_JOB = job("vision/runs", on="n1:0", project="vision", started=990, expected_runtime=120)
WAITING_JOB = job("vision/waits", 1, "vision")
NLP_JOB = job("nlp/waits", 1, "nlp")
SNAPSHOT = snapshot("1x1", PROJECTS, [RUNNING_JOB, WAITING_JOB, NLP_JOB], now=1000)


@pytest.fixture(params=["process", "same event loop"])
def scheduler(request) -> DecisionWorker:
    return DecisionWorker() if request.param == "process" else inline_scheduler()


async def test_decision_worker_returns_the_same_results_as_the_in_process_scheduler(scheduler):
    later = replace(
        SNAPSHOT, now=1060, workloads=(RUNNING_JOB, NLP_JOB, job("vision/new", 1, "vision"))
    )
    async with scheduler:
        for current in (SNAPSHOT, SNAPSHOT):
            assert await scheduler.decide(current) == decide(current)
        plan = await scheduler.decide(later)
        assert plan == decide(later)

        explained = await scheduler.explain("nlp/waits", frozenset({"nlp/waits"}))
        assert explained.now == later.now
        assert explained.wait == explain(later, plan, "nlp/waits", lambda job: job is NLP_JOB)
        assert (await scheduler.explain("vision/runs", frozenset())).wait is None

        assert (await scheduler.forecast()).starts == forecast(later, plan)

        dry_run_plan, starts = await scheduler.what_if(SNAPSHOT, ["vision/waits"])
        assert dry_run_plan == decide(SNAPSHOT)
        assert starts == forecast(SNAPSHOT, dry_run_plan, {"vision/waits"})
        after_end = replace(later, workloads=(NLP_JOB, job("vision/new", 1, "vision")))
        comparison = await scheduler.compare(Compare(frozenset(), ended=frozenset({"vision/runs"})))
        assert comparison == compare(
            (later, plan), (after_end, decide(after_end)), (), lambda _: False
        )
        assert await scheduler.decide(later) == decide(later), "queries change nothing"


@given(st.lists(snapshots(), min_size=2, max_size=4))
def test_patching_a_scheduler_plan_with_a_difference_gives_the_later_plan(
    snapshot_list: list[Snapshot],
) -> None:
    plans = [Plan(), *map(decide, snapshot_list)]
    mixed = Plan(decisions=(*plans[-1].decisions[::2], *plans[1].decisions))
    for before in plans:
        for after in (*plans, mixed):
            assert patched(before, difference(before, after)) == after


# ---- failures


def faulty(*faults: Fault) -> DecisionWorker:
    """Return a scheduler whose workers have these faults, request by request; then none."""
    remaining_faults = list(faults)

    async def start() -> FaultyPipe:
        return FaultyPipe(lambda: remaining_faults.pop(0) if remaining_faults else "")

    return DecisionWorker(start)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("dies", "it was killed by signal 9", id="killed"),
        pytest.param("late", "it did not decide within 60 seconds", id="no reply"),
        pytest.param("another number", "it did not decide within 60 seconds", id="wrong reply"),
    ],
)
@in_virtual_time
async def test_failed_decision_worker_is_replaced_and_gets_a_whole_snapshot(fault, reason):
    later = replace(SNAPSHOT, now=1060)
    async with faulty("", fault) as scheduler:  # the first request has no fault
        await scheduler.decide(SNAPSHOT)
        with pytest.raises(Unavailable, match=reason):
            await scheduler.decide(later)
        assert scheduler.state() == f"fails: {reason}"

        assert await scheduler.decide(later) == decide(later)
        assert scheduler.state() == "runs, replaced 1 times since the service started"


async def test_second_reply_of_the_decision_worker_to_a_request_is_ignored():
    later, latest = (
        replace(SNAPSHOT, now=1060),
        replace(SNAPSHOT, now=1100, workloads=(RUNNING_JOB, WAITING_JOB)),
    )
    async with faulty("", "twice") as scheduler:
        plans = [await scheduler.decide(current) for current in (SNAPSHOT, later, latest)]

        assert plans == [decide(current) for current in (SNAPSHOT, later, latest)]
        assert scheduler.started == 1


@in_virtual_time
async def test_decision_deadline_doubles_until_a_decision_is_in_time():
    async with faulty("late", "late", "late") as scheduler:
        for seconds in (60, 120, 240):
            with pytest.raises(Unavailable, match=f"within {seconds} seconds"):
                await scheduler.decide(SNAPSHOT)
        assert await scheduler.decide(SNAPSHOT) == decide(SNAPSHOT)


async def test_decision_after_a_cancelled_decision_sends_a_whole_snapshot():
    sent: list[type] = []

    class RecordingPipe(InlinePipe):
        def send(self, request: Request) -> None:
            assert isinstance(request.payload, Decide)
            sent.append(type(request.payload.update))
            super().send(request)

    async with DecisionWorker(RecordingPipe.start) as scheduler:
        await scheduler.decide(SNAPSHOT)
        cancelled = asyncio.ensure_future(scheduler.decide(SNAPSHOT))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])

        assert await scheduler.decide(SNAPSHOT) == decide(SNAPSHOT)
    assert [kind.__name__ for kind in sent] == ["Snapshot", "SnapshotChanges", "Snapshot"]


# ---- the process


async def test_killed_decision_process_is_replaced():
    async with DecisionWorker() as scheduler:
        await scheduler.decide(SNAPSHOT)
        for _ in range(3):
            os.kill(scheduler.pid or 0, signal.SIGKILL)
            with pytest.raises(Unavailable, match="killed by signal 9"):
                await scheduler.decide(SNAPSHOT)
            assert await scheduler.decide(SNAPSHOT) == decide(SNAPSHOT)


async def test_decision_process_ends_with_the_service_and_has_none_of_its_secrets(monkeypatch):
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "secret")
    async with DecisionWorker() as scheduler:
        process = psutil.Process(scheduler.pid)
        environment = process.environ()
    assert "RUNAI_HUB_TOKEN" not in environment
    assert not process.is_running()


async def test_decision_worker_out_of_memory_exits_and_is_replaced(monkeypatch, tmp_path):
    """The worker may use half of the machine's memory; here it may use almost none."""
    async with DecisionWorker() as scheduler:
        await scheduler.decide(SNAPSHOT)
        limit_bytes = 32 * 2**20
        psutil.Process(scheduler.pid).rlimit(psutil.RLIMIT_DATA, (limit_bytes, limit_bytes))
        queue = tuple(job(f"vision/{n}", 1, "vision") for n in range(60_000))
        with pytest.raises(Unavailable, match="it exited with 1"):
            await scheduler.decide(replace(SNAPSHOT, workloads=queue))
        assert await scheduler.decide(SNAPSHOT) == decide(SNAPSHOT)


async def test_users_start_forecast_cancels_the_background_forecast():
    queue = tuple(job(f"vision/{n}", 1, "vision", expected_runtime=60 + n) for n in range(3_000))
    large_snapshot = replace(SNAPSHOT, workloads=queue)
    async with DecisionWorker() as scheduler:
        await scheduler.decide(large_snapshot)
        background = asyncio.ensure_future(scheduler.forecast())
        await eventually_async(lambda: psutil.Process(scheduler.pid).children())

        await scheduler.what_if(large_snapshot, ["vision/1"])

        with pytest.raises(Unavailable, match="another forecast was asked for"):
            await background
        assert not psutil.Process(scheduler.pid).children()


async def test_background_forecast_does_not_cancel_a_users_start_forecast():
    queue = tuple(job(f"vision/{n}", 1, "vision", expected_runtime=60 + n) for n in range(3_000))
    large_snapshot = replace(SNAPSHOT, workloads=queue)
    async with DecisionWorker() as scheduler:
        await scheduler.decide(large_snapshot)
        users_forecast = asyncio.ensure_future(scheduler.what_if(large_snapshot, ["vision/2999"]))
        await eventually_async(lambda: psutil.Process(scheduler.pid).children())

        with pytest.raises(Unavailable, match="another forecast runs"):
            await scheduler.forecast()

        plan, starts = await users_forecast
        assert "vision/2999" in starts
        assert plan == decide(large_snapshot)


MUTE_WORKER_SCRIPT = """
import signal
from runai.hub_service.controller import decision_process

decision_process.ANSWERS_WITHIN_S = 0.2
decision_process.Decisions.answer = lambda *_: signal.pause()
decision_process.main()
"""


async def start_mute_worker() -> ProcessPipe:
    """Start a worker that decides, and whose answers to questions take for ever."""
    pipe = asyncio.subprocess.PIPE
    program = (sys.executable, "-P", "-c", MUTE_WORKER_SCRIPT)
    return ProcessPipe(await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe))


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(lambda worker: worker.explain("nlp/waits", frozenset()), id="explanation"),
        pytest.param(lambda worker: worker.compare(Compare(frozenset())), id="what if"),
        pytest.param(lambda worker: worker.what_if(SNAPSHOT, ["nlp/waits"]), id="dry run"),
        pytest.param(lambda worker: worker.forecast(), id="forecast"),
    ],
)
async def test_scheduler_query_beyond_its_deadline_fails_and_decisions_go_on(query):
    async with DecisionWorker(start_mute_worker) as scheduler:
        await scheduler.decide(SNAPSHOT)
        pending_query = asyncio.ensure_future(query(scheduler))

        with pytest.raises(Unavailable, match="it took longer than"):
            await pending_query
        assert await scheduler.decide(SNAPSHOT) == decide(SNAPSHOT)
        assert scheduler.started == 1
