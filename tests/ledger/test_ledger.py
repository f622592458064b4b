"""The ledger's answers after sequences of allocations and measurements."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from ledger.databases import on_each_database
from runai.hub_service.ledger import DeviceAllocation, UsageFilter
from runai.hub_service.ledger.opening import ledger_url

A = DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500)
B = DeviceAllocation("nlp", "bo", "nlp/b", "GPU-0", 500)
BUSY_A = {("vision/a", "GPU-0"): 0.4}
ALL_FILTER = UsageFilter()
A_FILTER = UsageFilter(workload="vision/a")


def record_usage(ledger, clock, report, seconds, allocations, utilization=None, *, step=1.0):
    """Hold `allocations` for `seconds`, with a report each step (None: no agent)."""
    ledger.record(clock.now, 0.0, allocations)
    for _ in range(int(seconds / step)):
        clock.now += step
        agent_report = None if utilization is None else report(clock.now, step, utilization)
        ledger.record(clock.now, step, allocations, agent_report)


def rounded(series):
    return [
        (None if p.allocated is None else round(p.allocated, 6),
         None if p.utilized is None else round(p.utilized, 6))
        for p in series.points
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
    ledger, clock, report, usage_filter, allocated, utilized
):
    book = ledger()
    busy = BUSY_A | {("nlp/b", "GPU-0"): 0.2}
    record_usage(book, clock, report, 20, [A, B], busy)
    series = await book.usage(usage_filter, clock.now - 20, clock.now)

    assert series.allocated_average == pytest.approx(allocated)
    assert series.utilized_average == pytest.approx(utilized)


async def test_allocated_average_is_exact_without_agent_reports(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 7, [A], step=7)
    record_usage(book, clock, report, 3, [A, B], step=3)
    series = await book.usage(ALL_FILTER, clock.now - 10, clock.now, 10)

    assert rounded(series) == [(0.65, None)]
    assert series.utilized_average is None
    assert book.average("vision/a") is None


async def test_usage_is_zero_without_allocation_and_a_gap_before_recording(ledger, clock, report):
    clock.now += 40
    book = ledger()
    record_usage(book, clock, report, 20, [])
    series = await book.usage(ALL_FILTER, clock.now - 60, clock.now, 20)

    assert rounded(series) == [(None, None), (None, None), (0.0, 0.0)]


async def test_utilization_is_a_gap_after_a_failed_poll_and_zero_if_idle(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 10, [A], BUSY_A)
    record_usage(book, clock, report, 10, [A], {})
    record_usage(book, clock, report, 10, [A], {("vision/a", "GPU-0"): 0.0})
    series = await book.usage(A_FILTER, clock.now - 30, clock.now, 10)

    assert rounded(series) == [(0.5, 0.4), (0.5, None), (0.5, 0.0)]
    assert series.utilized_average == pytest.approx(0.2)
    assert series.idle_gpu_hours == pytest.approx(5 / 3600)


async def test_utilization_that_the_driver_did_not_report_is_a_gap(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 10, [A], BUSY_A)
    record_usage(book, clock, report, 10, [A], {("vision/a", "GPU-0"): None})

    assert book.average("vision/a") == pytest.approx(0.4)


async def test_report_longer_than_its_allocation_adds_only_the_allocated_time(
    ledger, clock, report
):
    book = ledger()
    book.record(clock.now, 0, [])
    clock.now += 0.5
    book.record(clock.now, 0, [A])
    clock.now += 0.5
    book.record(clock.now, 1, [A], report(clock.now, 1, BUSY_A))
    totals = book.totals("vision/a")

    assert (totals.held_s, totals.measured_s, totals.used_s) == pytest.approx((0.5, 0.5, 0.4))


async def test_ledger_ignores_usage_samples_without_an_allocation(ledger, clock, report):
    book = ledger()
    record_usage(
        book, clock, report, 10, [A], BUSY_A | {("", "GPU-0"): 0.5, ("nlp/b", "GPU-0"): 0.1}
    )
    series = await book.usage(ALL_FILTER, clock.now - 10, clock.now)

    assert series.utilized_average == pytest.approx(0.4)
    assert book.average("nlp/b") is None


async def test_allocations_of_several_workers_on_a_device_are_summed(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 10, [A, A], BUSY_A)
    series = await book.usage(A_FILTER, clock.now - 10, clock.now)

    assert series.allocated_average == pytest.approx(1.0)
    assert series.utilized_average == pytest.approx(0.4)


async def test_unmeasured_device_does_not_lower_the_average_utilization(ledger, clock, report):
    book = ledger()
    both = [A, DeviceAllocation("vision", "ana", "vision/c", "GPU-1", 500)]
    record_usage(book, clock, report, 10, both, BUSY_A)
    series = await book.usage(UsageFilter(project="vision"), clock.now - 10, clock.now)

    # Half of the allocation was measured: 0.4 of it extrapolates to 0.8 of the whole.
    assert series.utilized_average == pytest.approx(0.8)


async def test_clock_set_back_adds_no_allocated_time_until_it_has_caught_up(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 20, [A])
    clock.now -= 10
    record_usage(book, clock, report, 20, [A])

    assert book.totals("vision/a").held_s == pytest.approx(30)


# -- now -----------------------------------------------------------------------------------------


async def test_current_usage_is_the_latest_measurement(ledger, clock, report):
    book = ledger()
    allocations = [A, A._replace(device="GPU-1")]
    book.record(clock.now, 0, allocations)
    clock.now += 1
    busy = BUSY_A | {("vision/a", "GPU-1"): 0.5}
    book.record(clock.now, 1, allocations, report(clock.now, 1, busy, memory=70))

    assert book.current("vision/a") == (pytest.approx(0.9), 140)
    assert book.device("GPU-0") == (pytest.approx(0.4), 70)


@pytest.mark.parametrize("reason", ["never", "long ago", "released", "not told"])
async def test_current_usage_is_none_without_a_recent_measurement(ledger, clock, report, reason):
    book = ledger()
    if reason != "never":
        busy = None if reason == "not told" else 0.4
        record_usage(book, clock, report, 5, [A], {("vision/a", "GPU-0"): busy})
    if reason == "long ago":
        record_usage(book, clock, report, 20, [A])
    if reason == "released":
        record_usage(book, clock, report, 1, [])

    assert book.current("vision/a") is None


# -- restarts ------------------------------------------------------------------------------------


@on_each_database
async def test_usage_totals_continue_after_a_restart_with_a_gap_between(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 25, [A], BUSY_A)
    book.close()
    clock.now += 35
    book = ledger()
    record_usage(book, clock, report, 30, [A], BUSY_A)
    series = await book.usage(A_FILTER, clock.now - 90, clock.now, 10)

    assert book.totals("vision/a").held_s == pytest.approx(55)
    assert book.average("vision/a") == pytest.approx(0.4)
    assert rounded(series)[3:6] == [(None, None)] * 3
    assert rounded(series)[6:] == [(0.5, 0.4)] * 3


@on_each_database
async def test_failed_ledger_write_is_repeated_at_the_next_flush(ledger, clock, report, database):
    book = ledger()
    record_usage(book, clock, report, 25, [A], BUSY_A)
    change(database, "ALTER TABLE samples RENAME TO hidden")
    await book.flush()
    change(database, "ALTER TABLE hidden RENAME TO samples")
    record_usage(book, clock, report, 10, [A], BUSY_A)
    await book.flush()

    assert ledger().totals("vision/a").held_s == pytest.approx(35)


async def test_long_ledger_write_failure_loses_usage_before_the_last_hour(
    ledger, clock, report, database
):
    book = ledger()
    change(database, "ALTER TABLE samples RENAME TO hidden")
    for _ in range(3):
        record_usage(book, clock, report, 3600, [A], step=10)
        await book.flush()
    change(database, "ALTER TABLE hidden RENAME TO samples")
    await book.flush()
    series = await book.usage(ALL_FILTER, clock.now - 3 * 3600, clock.now, 3600)

    assert rounded(series)[-1] == (0.5, None)
    assert rounded(series)[0] == (None, None)
    assert series.allocated_gpu_hours == pytest.approx(0.5)


async def test_usage_query_during_a_flush_counts_samples_once(ledger, clock, report):
    book = ledger()
    for _ in range(20):
        record_usage(book, clock, report, 10, [A], BUSY_A)
        flushed = asyncio.ensure_future(book.flush())
        series = await book.usage(A_FILTER, clock.now - 10, clock.now)
        assert series.allocated_gpu_hours == pytest.approx(5 / 3600)
        await flushed


async def test_cancelled_ledger_flush_counts_its_usage_once(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 30, [A], BUSY_A)
    flushed = asyncio.ensure_future(book.flush())
    await asyncio.sleep(0)
    flushed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushed
    book.close()

    assert ledger().totals("vision/a").held_s == pytest.approx(30)


def change(database, sql):
    engine = sa.create_engine(ledger_url(database))
    with engine.begin() as connection:
        connection.execute(sa.text(sql))
    engine.dispose()


async def test_ledger_without_allocations_writes_only_its_recording_time(
    ledger, clock, report, rows
):
    book = ledger()
    record_usage(book, clock, report, 60, [A], BUSY_A)
    await book.flush()
    sample_count_query = (
        "SELECT count(*) FROM samples JOIN series ON id = series_id WHERE kind <> 'watched'"
    )
    stored = rows(sample_count_query)
    record_usage(book, clock, report, 3600, [], step=10)
    await book.flush()

    assert rows(sample_count_query) == stored


# -- reused names --------------------------------------------------------------------------------


async def test_usage_average_of_a_reused_workload_name_starts_from_zero(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 20, [A], {("vision/a", "GPU-0"): 1.0})
    book.forget("vision/a")
    assert book.average("vision/a") is None
    record_usage(book, clock, report, 20, [A], {("vision/a", "GPU-0"): 0.2})

    assert book.average("vision/a") == pytest.approx(0.2)
    series = await book.usage(A_FILTER, clock.now - 40, clock.now)
    assert series.utilized_average == pytest.approx(0.6)


@on_each_database
async def test_workload_deleted_before_a_ledger_restart_retains_its_usage_history(
    ledger, clock, report
):
    book = ledger()
    record_usage(book, clock, report, 20, [A], BUSY_A)
    record_usage(book, clock, report, 5, [])
    book.forget("vision/a")
    book.close()
    clock.now += 100
    book = ledger()

    assert book.average("vision/a") is None
    series = await book.usage(A_FILTER, clock.now - 200, clock.now)
    assert series.utilized_average == pytest.approx(0.4)


# -- events --------------------------------------------------------------------------------------


@on_each_database
async def test_workload_events_are_in_order_and_survive_deletion_and_restart(ledger, clock, report):
    book = ledger()
    book.event("vision/a", "queued", "", project="vision", user="ana")
    clock.now += 1
    book.event("vision/a", "paused", "nlp takes back its quota")
    book.event("nlp/b", "queued", "")
    assert [e.kind for e in await book.events("vision/a")] == ["queued", "paused"]
    await book.flush()
    book.event("vision/a", "deleted", "")
    book.forget("vision/a")
    book.close()
    book = ledger()

    events = await book.events("vision/a")
    assert [e.kind for e in events] == ["queued", "paused", "deleted"]
    assert (events[1].at, events[1].text) == (clock.now, "nlp takes back its quota")
    assert [e.kind for e in await book.events("vision/a", limit=1)] == ["deleted"]
    assert [e.kind for e in await book.events("vision/a", since=clock.now)] == ["paused", "deleted"]


async def test_week_of_machine_sleep_is_a_gap_in_usage(ledger, clock, report):
    book = ledger()
    record_usage(book, clock, report, 60, [A], BUSY_A)
    await book.flush()
    clock.now += 7 * 86400
    record_usage(book, clock, report, 60, [A], BUSY_A)
    await book.flush()
    book.close()
    week = await ledger().usage(UsageFilter(workload="vision/a"), clock.now - 8 * 86400, clock.now)

    assert week.allocated_gpu_hours == pytest.approx(0.5 * 120 / 3600)
    assert week.used_gpu_hours == pytest.approx(0.4 * 120 / 3600)
