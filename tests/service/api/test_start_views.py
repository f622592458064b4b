"""Expected start times of waiting workloads: shown in every list, without a request for one."""

from __future__ import annotations

import itertools
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from builders import job, project, snapshot
from runai.hub_service.api.views import start_views
from runai.hub_service.api.views.start_views import PIECE_S, Forecasts
from runai.hub_service.client import AsyncClient
from runai.hub_service.controller.loop import Cycle
from runai.hub_service.processes.giving_way import RESTS
from runai.hub_service.scheduler import Snapshot, Workload, decide
from runai.hub_service.scheduler.cycle import forecast
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadView
from waiting import eventually_async


async def start_in_list(client: AsyncClient, name: str) -> WorkloadView | None:
    found = next(w for w in await client.workloads() if w.name == name)
    return found if found.expected_start else None


async def test_a_list_tells_when_each_that_waits_starts(simulated):
    ana = await simulated.client("ana")
    for name, gpus in (("first", 4), ("second", 4)):
        await ana.submit(
            SubmitRequest(
                name=name, project="vision", command=["train"], gpus=gpus, expected_runtime=600
            )
        )
    waiting = await eventually_async(lambda: start_in_list(ana, "second"))
    running = await start_in_list(ana, "first")

    assert running is None
    assert waiting.expected_start.at - waiting.submitted <= timedelta(seconds=601)
    assert waiting.expected_start.text.startswith("expected to start in")


def cycle_of(*waiting: Workload, now: int = 1000) -> Cycle:
    running = job("runs", on="n1:0", started=990, expected_runtime=120)
    world = snapshot("1x1", [project("a", 1)], [running, *waiting], now=now)
    return Cycle(world, decide(world))


@pytest.mark.parametrize(
    ("later", "told"),
    [
        pytest.param(0, "expected to start in 110 seconds", id="now"),
        pytest.param(44, "expected to start in 66 seconds", id="later, though it rests"),
        pytest.param(200, "starts at once, when those that make room have gone", id="overdue"),
    ],
)
async def test_earlier_forecast_is_shown_relative_to_the_present(later, told):
    clock = iter([0.0, 0.0, 10.0])  # check, start, end of a forecast: 10 s of work, so a long rest
    forecasts = Forecasts(clock=lambda: next(clock, 20.0))
    first = cycle_of(job("waits", 1))
    await eventually_async(lambda: forecasts.of(first))

    found = forecasts.of(cycle_of(job("waits", 1), now=1000 + later))

    assert found["waits"].text.startswith(told)
    assert found["waits"].at == 1110


class Noting(Event):
    """An event that is never set and records each caller's timeout."""

    def __init__(self, rests: list[float]) -> None:
        super().__init__()
        self._rests = rests

    def wait(self, timeout: float | None = None) -> bool:
        self._rests.append(timeout or 0.0)
        return False


async def test_forecast_sleeps_longer_than_it_computes(monkeypatch):
    first, rests = cycle_of(job("waits", 1)), list[float]()
    monkeypatch.setattr(start_views, "Event", lambda: Noting(rests))
    now = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: next(now))
    forecasts = Forecasts(clock=lambda: 0.0)

    found = await eventually_async(lambda: forecasts.of(first))

    assert found["waits"] == forecast(first.snapshot, first.plan)["waits"]
    assert set(rests) == {3.0}
    assert len(rests) > 1  # one rest after each simulated cycle


def test_a_forecast_of_thousands_rests_between_pieces_of_what_it_reads(monkeypatch):
    rests = list[float]()
    now = itertools.count()
    monkeypatch.setattr("time.thread_time", lambda: 0.001 * next(now))
    thousands = cycle_of(*[job(f"waits-{n}", 1) for n in range(3_000)])

    start_views._foreseen(thousands, Noting(rests))

    assert max(rests) <= RESTS * 2 * PIECE_S
    assert len(rests) > 3_000 / 500


def test_abandoned_forecast_stops_at_its_next_rest(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr("time.thread_time", lambda: next(now))
    over = Event()
    over.set()

    with pytest.raises(start_views._OverError):
        start_views._foreseen(cycle_of(job("waits", 1)), over)


async def test_forecast_older_than_a_minute_is_computed_again():
    forecasts = Forecasts(clock=lambda: 0.0)
    first = cycle_of(job("waits", 1))
    await eventually_async(lambda: forecasts.of(first))
    later = cycle_of(job("waits", 1), now=1061)

    assert not forecasts.of(later)
    found = await eventually_async(lambda: forecasts.of(later))
    assert found["waits"].text.startswith("expected to start in 49 seconds")


async def test_after_a_forecast_the_next_one_rests_25_times_as_long_as_it_took(monkeypatch):
    made = list[Snapshot]()

    def noted(*args: Any, rest: object) -> Any:
        made.append(args[0])
        return forecast(*args)

    monkeypatch.setattr(start_views, "forecast", noted)
    asked_at = iter([0.0, 0.0, 5.0])  # check, start, end of a forecast: 5 s
    later = [129.0]
    forecasts = Forecasts(clock=lambda: next(asked_at, later[0]))
    alone, crowded = cycle_of(job("waits", 1)), cycle_of(job("waits", 1), job("too", 1))

    await eventually_async(lambda: forecasts.of(alone))
    known = forecasts.of(crowded)
    assert list(known) == ["waits"]
    assert forecasts.of(crowded) is known

    later[0] = 130.0
    await eventually_async(lambda: len(forecasts.of(crowded)) == 2)
    assert made == [alone.snapshot, crowded.snapshot]
