"""The database: migrations, levels, retention."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from postgres import on_each_database
from runai.hub_service.ledger import DeviceAllocation, UsageFilter, schema
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.store import LedgerStore

HALF_GPU = DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500)
MINUTE, HOUR, DAY = 60, 3600, 86400


@on_each_database
def test_ledger_migrations_create_the_current_schema(database, rows):
    LedgerStore(database).close()  # the first opening has migrated it
    engine = sa.create_engine(ledger_url(database))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    engine.dispose()

    assert differences == []
    assert rows("SELECT version_num FROM alembic_version") == [(schema.HEAD,)]


async def record_hours(ledger, clock, report, hours, busy_minutes):
    """Hold for `busy_minutes` at the start of each hour; write about every ten seconds."""
    for _ in range(hours):
        for minute in range(60):
            allocations = [HALF_GPU] if minute < busy_minutes else []
            ledger.record(clock.now, 0, allocations)
            clock.now += MINUTE
            busy = {("vision/a", "GPU-0"): 0.4} if allocations else {}
            ledger.record(clock.now, MINUTE, allocations, report(clock.now, MINUTE, busy))
        await ledger.flush()


@on_each_database
async def test_usage_windows_are_stored_only_while_devices_were_allocated(
    open_ledger, clock, report, rows
):
    clock.now = 1_699_999_200.0  # a whole hour
    start = int(clock.now)
    ledger = open_ledger()
    await record_hours(ledger, clock, report, 3, busy_minutes=1)
    windows = rows(
        "SELECT level, at, samples.held_s FROM samples JOIN series ON id = series_id"
        f" WHERE kind = 'workload' AND at < {start + HOUR + 10} ORDER BY level, at",
    )

    assert [(level, at - start, round(seconds)) for level, at, seconds in windows] == [
        # Window of so many seconds, its end, and the allocated seconds in it.
        *((10, second, 10) for second in range(10, 70, 10)),
        (60, 60, 60),
        (3600, 3600, 60),
    ]


@on_each_database
async def test_partly_written_usage_window_continues_after_a_restart(open_ledger, clock, rows):
    for _ in range(2):
        ledger = open_ledger()
        ledger.record(clock.now, 0, [HALF_GPU])
        clock.now += 4
        ledger.close()

    join_clause = "JOIN series ON id = series_id WHERE kind = 'workload'"
    assert (
        rows(f"SELECT samples.held_s, samples.allocated_s FROM samples {join_clause}")
        == [pytest.approx((8, 4))] * 3
    )
    assert open_ledger().totals("vision/a").allocated_s == pytest.approx(4)


@on_each_database
async def test_ledger_retention_drops_fine_rows_and_no_totals(open_ledger, clock, report, rows):
    ledger = open_ledger()
    start = clock.now
    await record_hours(ledger, clock, report, 5, busy_minutes=7)
    before = [
        await ledger.usage(usage_filter, start, start + 5 * HOUR, HOUR)
        for usage_filter in USAGE_FILTERS
    ]
    count_before = rows("SELECT count(*) FROM samples")
    ledger.close()
    for age, min_level in [(3 * DAY, 60), (100 * DAY, 3600)]:
        clock.now = start + age
        ledger = open_ledger()
        ledger._store.drop_old(clock.now)
        after = [
            await ledger.usage(usage_filter, start, start + 5 * HOUR, HOUR)
            for usage_filter in USAGE_FILTERS
        ]

        assert rows(f"SELECT count(*) FROM samples WHERE level < {min_level}") == [(0,)]
        for earlier, later in zip(before, after, strict=True):
            assert later.used_gpu_hours == pytest.approx(earlier.used_gpu_hours)
            assert later.utilized_average == pytest.approx(earlier.utilized_average, rel=0.02)
    assert rows("SELECT count(*) FROM samples") < count_before


USAGE_FILTERS = [UsageFilter(), UsageFilter(workload="vision/a"), UsageFilter(project="vision")]


@on_each_database
async def test_totals_of_a_deleted_workload_survive_retention(open_ledger, clock, report):
    ledger = open_ledger()
    ledger.record(clock.now, 0, [HALF_GPU])
    clock.now += 25
    ledger.record(clock.now, 25, [], report(clock.now, 25, {("vision/a", "GPU-0"): 0.4}))
    ledger.forget("vision/a")
    ledger.close()
    clock.now += 100 * DAY
    ledger = open_ledger()
    ledger._store.drop_old(clock.now)
    series = await ledger.usage(
        UsageFilter(workload="vision/a"), clock.now - 101 * DAY, clock.now, HOUR
    )

    assert series.used_gpu_hours == pytest.approx(0.4 * 25 / HOUR)
    assert series.utilized_average == pytest.approx(0.4)


@on_each_database
async def test_workload_events_older_than_400_days_are_dropped(open_ledger, clock, report):
    ledger = open_ledger()
    ledger.event("vision/a", "queued", "")
    await ledger.flush()
    clock.now += 401 * DAY
    ledger._store.drop_old(clock.now)

    assert await ledger.events("vision/a") == []


@on_each_database
async def test_workload_average_is_read_from_its_own_series_among_many(open_ledger, clock, report):
    ledger = open_ledger()
    for number in range(20):
        allocations = [HALF_GPU._replace(workload=f"vision/{number}")]
        ledger.record(clock.now, 0, allocations)
        clock.now += 5
        busy = {(f"vision/{number}", "GPU-0"): number / 20}
        ledger.record(clock.now, 5, [], report(clock.now, 5, busy))
        await ledger.flush()
    ledger.close()
    clock.now += 3600
    ledger = open_ledger()
    averages = [ledger.average(f"vision/{number}") for number in range(20)]

    assert averages == pytest.approx([number / 20 for number in range(20)])
