"""Expected start times of waiting workloads: shown in every list, without a request for one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from builders import job, project, snapshot
from runai.hub_service.api.views.start_forecasts import PAUSE_FACTOR, ForecastCall, StartForecasts
from runai.hub_service.client import AsyncClient
from runai.hub_service.clusters.states.set_aside import set_aside
from runai.hub_service.controller.controller import Cycle
from runai.hub_service.controller.decision_messages import Foreseen
from runai.hub_service.model.records import StateReason
from runai.hub_service.scheduler import Workload, decide
from runai.hub_service.scheduler.cycle import forecast
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import WorkloadView
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async


async def start_in_list(client: AsyncClient, name: str) -> WorkloadView | None:
    found = next(w for w in await client.workloads() if w.name == name)
    return found if found.expected_start else None


async def test_workload_list_has_the_expected_start_of_a_waiting_job(simulated):
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

    cluster = simulated.platform.cluster
    aside = set_aside(
        cluster.index["vision/second"], StateReason("account_away", "ana does not answer")
    )
    cluster.commit({"vision/second": aside})
    assert await start_in_list(ana, "second") is None  # it waits for no GPU


def cycle_of(*waiting: Workload, now: int = 1000) -> Cycle:
    """Return a cycle in which the only GPU is in use until 1110, as expected."""
    running = job("runs", on="n1:0", started=990, expected_runtime=120)
    cluster_snapshot = snapshot("1x1", [project("a", 1)], [running, *waiting], now=now)
    return Cycle(cluster_snapshot, decide(cluster_snapshot))


def forecaster_of(cycle: Cycle) -> ForecastCall:
    """Return a scheduler's forecast of a cycle."""

    async def compute_forecast() -> Foreseen:
        return Foreseen(cycle.snapshot.now, forecast(cycle.snapshot, cycle.plan))

    return compute_forecast


@pytest.mark.parametrize(
    ("later_s", "text"),
    [
        pytest.param(0, "expected to start in 110 seconds", id="at once"),
        pytest.param(44, "expected to start in 66 seconds", id="later, from the cache"),
        pytest.param(
            200, "starts as soon as the jobs that make room for it have stopped", id="overdue"
        ),
    ],
)
async def test_cached_start_forecast_is_worded_relative_to_the_present(later_s, text):
    clock = iter([0.0, 0.0, 10.0])  # check, start, end of a forecast: 10 s of work, so a long pause
    forecasts = StartForecasts(clock=lambda: next(clock, 20.0))
    first = cycle_of(job("waits", 1))
    await eventually_async(lambda: forecasts.of(first, forecaster_of(first)))

    present = cycle_of(job("waits", 1), now=1000 + later_s)
    found = forecasts.of(present, forecaster_of(present))

    assert found["waits"].text.startswith(text)
    assert found["waits"].at == 1110


async def test_start_forecast_older_than_a_minute_is_computed_again():
    forecasts = StartForecasts(clock=lambda: 0.0)
    first = cycle_of(job("waits", 1))
    await eventually_async(lambda: forecasts.of(first, forecaster_of(first)))
    later = cycle_of(job("waits", 1), now=1061)

    assert not forecasts.of(later, forecaster_of(later))
    found = await eventually_async(lambda: forecasts.of(later, forecaster_of(later)))
    assert found["waits"].text.startswith("expected to start in 49 seconds")


async def test_next_start_forecast_waits_several_times_the_previous_duration():
    clock_times = iter([0.0, 0.0, 5.0])  # check, start, end of a forecast: 5 s
    now = [5.0 + 5.0 * PAUSE_FACTOR - 1]
    forecasts = StartForecasts(clock=lambda: next(clock_times, now[0]))
    one_waiting, two_waiting = cycle_of(job("waits", 1)), cycle_of(job("waits", 1), job("too", 1))

    await eventually_async(lambda: forecasts.of(one_waiting, forecaster_of(one_waiting)))
    known = forecasts.of(two_waiting, forecaster_of(two_waiting))
    assert list(known) == ["waits"]
    assert forecasts.of(two_waiting, forecaster_of(two_waiting)) is known

    now[0] += 1
    await eventually_async(lambda: len(forecasts.of(two_waiting, forecaster_of(two_waiting))) == 2)


async def test_failed_start_forecast_retains_the_known_expected_starts():
    async def fail() -> Foreseen:
        raise Unavailable("the worker is new")

    forecasts = StartForecasts(clock=lambda: 0.0)
    first = cycle_of(job("waits", 1))
    known = await eventually_async(lambda: forecasts.of(first, forecaster_of(first)))

    assert forecasts.of(cycle_of(job("waits", 1)), fail) == known
    await asyncio.sleep(0)
    assert forecasts.of(first, forecaster_of(first)) == known
