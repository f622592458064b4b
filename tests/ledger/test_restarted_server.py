"""A restart of the ledger's PostgreSQL loses no data; queries fail with a time to retry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres import PostgresServer, postgres_server
from runai.hub_service.ledger import Ledger, UsageFilter
from runai.hub_service.ledger.integration import DeviceAllocation
from runai.hub_service.wire.errors import Unavailable

START = 1_700_000_000.0
EXP, NEW, REMOVED = (
    DeviceAllocation("vision", "ana", f"vision/{name}", f"GPU-{number}", 1000, "box")
    for number, name in enumerate(("exp", "new", "gone"))
)
VISION_FILTER = UsageFilter(project="vision")

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(300)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server(durable=True) as restarted:
        yield restarted


async def test_postgresql_restart_loses_no_usage_and_queries_return_retry_after(
    server: PostgresServer,
):
    now = [START]
    ledger = Ledger(server.address, clock=lambda: now[0])
    ledger.record(
        now[0], 0.0, [DeviceAllocation("vision", "ana", "vision/exp", "GPU-0", 1000, "box")]
    )
    now[0] += 60
    await ledger.flush()
    before = await ledger.usage(VISION_FILTER, START, now[0])

    server.stop()
    ledger.event("vision/exp", "paused", "while the server was away")
    now[0] += 60
    await ledger.flush()
    with pytest.raises(Unavailable) as refused:
        await ledger.events("vision/exp")
    assert (refused.value.code, refused.value.retry_after) == ("history_away", 2.0)
    server.start()
    now[0] += 60
    # The first flush may find its connection closed; it keeps its rows for the next one.
    await ledger.flush()
    await ledger.flush()

    assert [event.kind for event in await ledger.events("vision/exp")] == ["paused"]
    ledger.close()
    reopened = Ledger(server.address, clock=lambda: now[0])
    after = await reopened.usage(VISION_FILTER, START, now[0])
    assert before.points
    assert sum(point.allocated or 0 for point in after.points) >= sum(
        point.allocated or 0 for point in before.points
    )
    reopened.close()

    # Unwritten rows must not keep a service from ending either.
    server.stop()
    ledger = Ledger(server.address)
    ledger.event("vision/exp", "running", "")
    ledger.close()
    ledger.close()


async def test_ledger_started_without_postgresql_continues_from_stored_totals(
    server: PostgresServer,
):
    now = [START]
    first = Ledger(server.address, clock=lambda: now[0])
    first.record(now[0], 0.0, [EXP, REMOVED])
    now[0] += 60
    first.close()
    before = first.totals("vision/exp").allocated_s
    server.stop()

    ledger = Ledger(server.address, clock=lambda: now[0])
    ledger.record(now[0], 0.0, [EXP, NEW])
    ledger.event("vision/new", "running", "while the server was away")
    ledger.forget("vision/gone")
    now[0] += 60
    await ledger.flush()
    assert ledger.unhealthy_reason() == "OperationalError"
    with pytest.raises(Unavailable) as refused:
        await ledger.usage(VISION_FILTER, START, now[0])
    assert (refused.value.code, refused.value.retry_after) == ("history_away", 2.0)

    server.start()
    await ledger.flush()
    now[0] += 50
    ledger.record(now[0], 0.0, [EXP, NEW])
    ledger.close()

    assert not ledger.unhealthy_reason()
    reopened = Ledger(server.address, clock=lambda: now[0])
    assert reopened.totals("vision/exp").allocated_s == pytest.approx(before + 60 + 50)
    assert reopened.totals("vision/new").allocated_s == pytest.approx(60 + 50)
    assert reopened.workloads() == ["vision/exp", "vision/new"]
    assert [event.kind for event in await reopened.events("vision/new")] == ["running"]
    usage = await reopened.usage(VISION_FILTER, START, now[0], 10)
    # 170 s in steps of 10: vision/exp, with vision/gone or vision/new.
    assert [point.allocated for point in usage.points] == pytest.approx([2.0] * 17)
    reopened.close()
