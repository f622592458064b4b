"""The ledger's answers after sequences of allocations and measurements."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from postgres import on_each_database
from runai.hub_service.ledger import DeviceAllocation, UsageFilter
from runai.hub_service.ledger.opening import ledger_url

DAY_S = 86_400
HALF_GPU = DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500)  # milli-GPU
OTHER_HALF = DeviceAllocation("nlp", "bo", "nlp/b", "GPU-0", 500)
BUSY_40 = {("vision/a", "GPU-0"): 0.4}  # utilization of 40 %
NO_FILTER = UsageFilter()
WORKLOAD_FILTER = UsageFilter(workload="vision/a")


def record_usage(ledger, clock, report, seconds, allocations, utilization=None, *, step=1.0):
    """Hold `allocations` for `seconds`, with a report each step (None: no agent)."""
    ledger.record(clock.now, 0.0, allocations)
    for _ in range(int(seconds / step)):
        clock.now += step
        agent_report = None if utilization is None else report(clock.now, step, utilization)
        ledger.record(clock.now, step, allocations, agent_report)


def allocated_and_utilized(series):
    """Return the allocated and the used GPUs of each point; None: a gap."""
    return [
        (None if point.allocated is None else round(point.allocated, 6),
         None if point.utilized is None else round(point.utilized, 6))
        for point in series.points
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("usage_filter", "allocated", "utilized"),
    [
        (UsageFilter(project="nlp", user="bo"), 0.5, 0.2),
        (UsageFilter(project="nlp", user="ana"), 0.0, 0.0),
        (UsageFilter(workload="vision/a", project="vision"), 0.5, 0.4),
        (UsageFilter(workload="vision/a", project="nlp"), None, None),
        (UsageFilter(workload="vision/none"), None, None),
    ],
)
async def test_usage_filter_sums_only_its_own_allocations(
    open_ledger, clock, report, usage_filter, allocated, utilized
):
    ledger = open_ledger()
    busy = BUSY_40 | {("nlp/b", "GPU-0"): 0.2}
    record_usage(ledger, clock, report, 20, [HALF_GPU, OTHER_HALF], busy)
    series = await ledger.usage(usage_filter, clock.now - 20, clock.now)

    assert series.allocated_average == pytest.approx(allocated)
    assert series.utilized_average == pytest.approx(utilized)


async def test_allocated_average_is_exact_without_agent_reports(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 7, [HALF_GPU], step=7)
    record_usage(ledger, clock, report, 3, [HALF_GPU, OTHER_HALF], step=3)
    series = await ledger.usage(NO_FILTER, clock.now - 10, clock.now, 10)

    # Half a GPU for 7 s, a whole one for 3 s.
    assert allocated_and_utilized(series) == [(0.65, None)]
    assert series.utilized_average is None
    assert ledger.average("vision/a") is None


async def test_usage_is_zero_without_allocation_and_a_gap_before_recording(
    open_ledger, clock, report
):
    clock.now += 40
    ledger = open_ledger()
    record_usage(ledger, clock, report, 20, [])
    series = await ledger.usage(NO_FILTER, clock.now - 60, clock.now, 20)

    assert allocated_and_utilized(series) == [(None, None), (None, None), (0.0, 0.0)]


async def test_utilization_is_a_gap_after_a_failed_poll_and_zero_if_idle(
    open_ledger, clock, report
):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 10, [HALF_GPU], BUSY_40)
    record_usage(ledger, clock, report, 10, [HALF_GPU], {})
    record_usage(ledger, clock, report, 10, [HALF_GPU], {("vision/a", "GPU-0"): 0.0})
    series = await ledger.usage(WORKLOAD_FILTER, clock.now - 30, clock.now, 10)

    assert allocated_and_utilized(series) == [(0.5, 0.4), (0.5, None), (0.5, 0.0)]
    assert series.utilized_average == pytest.approx(0.2)
    assert series.idle_gpu_hours == pytest.approx(0.5 * 10 / 3600)


async def test_utilization_that_the_driver_did_not_report_is_a_gap(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 10, [HALF_GPU], BUSY_40)
    record_usage(ledger, clock, report, 10, [HALF_GPU], {("vision/a", "GPU-0"): None})

    assert ledger.average("vision/a") == pytest.approx(0.4)


async def test_report_longer_than_its_allocation_adds_only_the_allocated_time(
    open_ledger, clock, report
):
    ledger = open_ledger()
    ledger.record(clock.now, 0, [])
    clock.now += 0.5
    ledger.record(clock.now, 0, [HALF_GPU])
    clock.now += 0.5
    ledger.record(clock.now, 1, [HALF_GPU], report(clock.now, 1, BUSY_40))
    totals = ledger.totals("vision/a")

    assert (totals.held_s, totals.measured_s, totals.used_s) == pytest.approx((0.5, 0.5, 0.4))


async def test_ledger_ignores_usage_samples_without_an_allocation(open_ledger, clock, report):
    ledger = open_ledger()
    busy = BUSY_40 | {("", "GPU-0"): 0.5, ("nlp/b", "GPU-0"): 0.1}
    record_usage(ledger, clock, report, 10, [HALF_GPU], busy)
    series = await ledger.usage(NO_FILTER, clock.now - 10, clock.now)

    assert series.utilized_average == pytest.approx(0.4)
    assert ledger.average("nlp/b") is None


async def test_allocations_of_several_workers_on_a_device_are_summed(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 10, [HALF_GPU, HALF_GPU], BUSY_40)
    series = await ledger.usage(WORKLOAD_FILTER, clock.now - 10, clock.now)

    assert series.allocated_average == pytest.approx(1.0)
    assert series.utilized_average == pytest.approx(0.4)


async def test_unmeasured_device_does_not_lower_the_average_utilization(open_ledger, clock, report):
    ledger = open_ledger()
    both = [HALF_GPU, DeviceAllocation("vision", "ana", "vision/c", "GPU-1", 500)]
    record_usage(ledger, clock, report, 10, both, BUSY_40)
    series = await ledger.usage(UsageFilter(project="vision"), clock.now - 10, clock.now)

    # Half of the allocation was measured: 0.4 of it extrapolates to 0.8 of the whole.
    assert series.utilized_average == pytest.approx(0.8)


async def test_clock_set_back_adds_no_allocated_time_until_it_has_caught_up(
    open_ledger, clock, report
):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 20, [HALF_GPU])
    clock.now -= 10
    record_usage(ledger, clock, report, 20, [HALF_GPU])

    # 20 s, and the last 10 of 20 s after the clock was set back by 10.
    assert ledger.totals("vision/a").held_s == pytest.approx(30)


# -- now -----------------------------------------------------------------------------------------


async def test_current_usage_is_the_latest_measurement(open_ledger, clock, report):
    ledger = open_ledger()
    allocations = [HALF_GPU, HALF_GPU._replace(device="GPU-1")]
    ledger.record(clock.now, 0, allocations)
    clock.now += 1
    busy = BUSY_40 | {("vision/a", "GPU-1"): 0.5}
    ledger.record(clock.now, 1, allocations, report(clock.now, 1, busy, memory=70))

    # Utilization and MiB of memory, of the workload's two devices together and of one.
    assert ledger.current("vision/a") == (pytest.approx(0.9), 140)
    assert ledger.device("GPU-0") == (pytest.approx(0.4), 70)


@pytest.mark.parametrize("reason", ["never", "long ago", "released", "not reported"])
async def test_current_usage_is_none_without_a_recent_measurement(
    open_ledger, clock, report, reason
):
    ledger = open_ledger()
    if reason != "never":
        busy = None if reason == "not reported" else 0.4
        record_usage(ledger, clock, report, 5, [HALF_GPU], {("vision/a", "GPU-0"): busy})
    if reason == "long ago":
        record_usage(ledger, clock, report, 20, [HALF_GPU])
    if reason == "released":
        record_usage(ledger, clock, report, 1, [])

    assert ledger.current("vision/a") is None


# -- restarts ------------------------------------------------------------------------------------


@on_each_database
async def test_usage_totals_continue_after_a_restart_with_a_gap_between(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 25, [HALF_GPU], BUSY_40)
    ledger.close()
    clock.now += 35
    ledger = open_ledger()
    record_usage(ledger, clock, report, 30, [HALF_GPU], BUSY_40)
    series = await ledger.usage(WORKLOAD_FILTER, clock.now - 90, clock.now, 10)

    assert ledger.totals("vision/a").held_s == pytest.approx(55)
    assert ledger.average("vision/a") == pytest.approx(0.4)
    assert allocated_and_utilized(series)[3:6] == [(None, None)] * 3
    assert allocated_and_utilized(series)[6:] == [(0.5, 0.4)] * 3


@on_each_database
async def test_failed_ledger_write_is_repeated_at_the_next_flush(
    open_ledger, clock, report, database
):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 25, [HALF_GPU], BUSY_40)
    execute(database, "ALTER TABLE samples RENAME TO hidden")
    await ledger.flush()
    execute(database, "ALTER TABLE hidden RENAME TO samples")
    record_usage(ledger, clock, report, 10, [HALF_GPU], BUSY_40)
    await ledger.flush()

    assert open_ledger().totals("vision/a").held_s == pytest.approx(35)


async def test_long_ledger_write_failure_loses_usage_before_the_last_hour(
    open_ledger, clock, report, database
):
    ledger = open_ledger()
    execute(database, "ALTER TABLE samples RENAME TO hidden")
    for _ in range(3):
        record_usage(ledger, clock, report, 3600, [HALF_GPU], step=10)
        await ledger.flush()
    execute(database, "ALTER TABLE hidden RENAME TO samples")
    await ledger.flush()
    series = await ledger.usage(NO_FILTER, clock.now - 3 * 3600, clock.now, 3600)

    assert allocated_and_utilized(series)[-1] == (0.5, None)
    assert allocated_and_utilized(series)[0] == (None, None)
    assert series.allocated_gpu_hours == pytest.approx(0.5)  # half a GPU in the last hour


async def test_usage_query_during_a_flush_counts_samples_once(open_ledger, clock, report):
    ledger = open_ledger()
    for _ in range(20):
        record_usage(ledger, clock, report, 10, [HALF_GPU], BUSY_40)
        flush = asyncio.ensure_future(ledger.flush())
        series = await ledger.usage(WORKLOAD_FILTER, clock.now - 10, clock.now)
        assert series.allocated_gpu_hours == pytest.approx(0.5 * 10 / 3600)
        await flush


async def test_cancelled_ledger_flush_counts_its_usage_once(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 30, [HALF_GPU], BUSY_40)
    flush = asyncio.ensure_future(ledger.flush())
    await asyncio.sleep(0)
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    ledger.close()

    assert open_ledger().totals("vision/a").held_s == pytest.approx(30)


def execute(database, sql):
    engine = sa.create_engine(ledger_url(database))
    with engine.begin() as connection:
        connection.execute(sa.text(sql))
    engine.dispose()


async def test_ledger_without_allocations_writes_only_its_recording_time(
    open_ledger, clock, report, rows
):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 60, [HALF_GPU], BUSY_40)
    await ledger.flush()
    sample_count_query = (
        "SELECT count(*) FROM samples JOIN series ON id = series_id WHERE kind <> 'watched'"
    )
    count_before = rows(sample_count_query)
    record_usage(ledger, clock, report, 3600, [], step=10)
    await ledger.flush()

    assert rows(sample_count_query) == count_before


# -- reused names --------------------------------------------------------------------------------


async def test_usage_average_of_a_reused_workload_name_starts_from_zero(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 20, [HALF_GPU], {("vision/a", "GPU-0"): 1.0})
    ledger.forget("vision/a")
    assert ledger.average("vision/a") is None
    record_usage(ledger, clock, report, 20, [HALF_GPU], {("vision/a", "GPU-0"): 0.2})

    assert ledger.average("vision/a") == pytest.approx(0.2)
    series = await ledger.usage(WORKLOAD_FILTER, clock.now - 40, clock.now)
    assert series.utilized_average == pytest.approx(0.6)  # of 1.0 and 0.2


@on_each_database
async def test_workload_deleted_before_a_ledger_restart_retains_its_usage_history(
    open_ledger, clock, report
):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 20, [HALF_GPU], BUSY_40)
    record_usage(ledger, clock, report, 5, [])
    ledger.forget("vision/a")
    ledger.close()
    clock.now += 100
    ledger = open_ledger()

    assert ledger.average("vision/a") is None
    series = await ledger.usage(WORKLOAD_FILTER, clock.now - 200, clock.now)
    assert series.utilized_average == pytest.approx(0.4)


# -- events --------------------------------------------------------------------------------------


@on_each_database
async def test_workload_events_are_in_order_and_survive_deletion_and_restart(
    open_ledger, clock, report
):
    ledger = open_ledger()
    ledger.event("vision/a", "queued", "", project="vision", user="ana")
    clock.now += 1
    ledger.event("vision/a", "paused", "nlp takes back its quota")
    ledger.event("nlp/b", "queued", "")
    assert [e.kind for e in await ledger.events("vision/a")] == ["queued", "paused"]
    await ledger.flush()
    ledger.event("vision/a", "deleted", "")
    ledger.forget("vision/a")
    ledger.close()
    ledger = open_ledger()

    events = await ledger.events("vision/a")
    assert [e.kind for e in events] == ["queued", "paused", "deleted"]
    assert (events[1].at, events[1].text) == (clock.now, "nlp takes back its quota")
    assert [e.kind for e in await ledger.events("vision/a", limit=1)] == ["deleted"]
    assert [e.kind for e in await ledger.events("vision/a", since=clock.now)] == [
        "paused",
        "deleted",
    ]


async def test_week_of_machine_sleep_is_a_gap_in_usage(open_ledger, clock, report):
    ledger = open_ledger()
    record_usage(ledger, clock, report, 60, [HALF_GPU], BUSY_40)
    await ledger.flush()
    clock.now += 7 * DAY_S
    record_usage(ledger, clock, report, 60, [HALF_GPU], BUSY_40)
    await ledger.flush()
    ledger.close()
    week = await open_ledger().usage(WORKLOAD_FILTER, clock.now - 8 * DAY_S, clock.now)

    assert week.allocated_gpu_hours == pytest.approx(0.5 * 120 / 3600)
    assert week.used_gpu_hours == pytest.approx(0.4 * 120 / 3600)
