"""Past workloads, deleted ones included: the trace that a simulation replays."""

from __future__ import annotations

import pytest

from postgres import on_each_database
from runai.hub_service.ledger import DeviceAllocation, PastRequest

HALF_GPU = DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500)
WHOLE_GPU = DeviceAllocation("nlp", "bo", "nlp/b", "GPU-1", 1000)


def record_seconds(ledger, clock, seconds, allocations):
    ledger.record(clock.now, 0.0, allocations)
    for _ in range(seconds):
        clock.now += 1.0
        ledger.record(clock.now, 1.0, allocations)


def summaries(past):
    return [
        (w.workload, w.project, w.user, w.submitted, pytest.approx(w.runtime_s), w.is_session)
        for w in past
    ]


async def test_workload_history_includes_the_current_allocation_before_a_flush(open_ledger, clock):
    ledger, start = open_ledger(), clock.now
    ledger.event("vision/a", "queued", "", project="vision", user="ana")
    clock.now += 40
    record_seconds(ledger, clock, 20, [HALF_GPU])

    past = await ledger.past(start - 1)

    assert summaries(past) == [("vision/a", "vision", "ana", start, 20, False)]
    assert past[0].allocated_s == pytest.approx(10)  # half a GPU for 20 s


@on_each_database
async def test_deleted_workload_and_its_namesake_are_separate_in_the_history(open_ledger, clock):
    ledger, start = open_ledger(), clock.now
    ledger.event("vision/a", "queued", "")
    record_seconds(ledger, clock, 30, [HALF_GPU])
    ledger.event("vision/a", "ended", "")
    ledger.event("vision/a", "deleted", "")
    record_seconds(ledger, clock, 30, [])
    ledger.forget("vision/a")
    ledger.event("vision/a", "queued", "")
    second_start = clock.now
    clock.now += 30
    record_seconds(ledger, clock, 40, [HALF_GPU])
    await ledger.flush()
    ledger.close()

    past = await open_ledger().past(start - 1)

    assert [(w.submitted, w.is_session) for w in past] == [(start, True), (second_start, False)]
    assert [w.runtime_s for w in past] == pytest.approx([30, 40])


@on_each_database
async def test_workload_history_excludes_workloads_without_an_allocation_since_the_start(
    open_ledger, clock
):
    ledger = open_ledger()
    record_seconds(ledger, clock, 30, [HALF_GPU])
    record_seconds(ledger, clock, 30, [])
    await ledger.flush()
    ledger.close()
    clock.now += 1000
    second_start, ledger = clock.now, open_ledger()
    record_seconds(ledger, clock, 30, [WHOLE_GPU])

    assert [w.workload for w in await ledger.past(second_start - 100)] == ["nlp/b"]
    assert [w.workload for w in await ledger.past(second_start - 1100)] == ["vision/a", "nlp/b"]


# ---- requests


def requests(past):
    return [(w.submitted, w.request, w.starts) for w in past]


@on_each_database
async def test_workload_history_has_the_last_request_before_and_after_a_flush(open_ledger, clock):
    ledger, start = open_ledger(), int(clock.now)
    ledger.record_request("vision/a", PastRequest(start, "half", 0))
    record_seconds(ledger, clock, 20, [HALF_GPU])

    assert requests(await ledger.past(start - 1)) == [(start, "half", 0)]
    await ledger.flush()
    assert requests(await ledger.past(start - 1)) == [(start, "half", 0)]
    ledger.record_request("vision/a", PastRequest(start, "half, urgent", 2))

    assert requests(await ledger.past(start - 1)) == [(start, "half, urgent", 2)]
    await ledger.flush()
    ledger.close()
    assert requests(await open_ledger().past(start - 1)) == [(start, "half, urgent", 2)]


@on_each_database
async def test_workloads_that_reuse_a_name_have_separate_requests(open_ledger, clock):
    ledger, first_submitted = open_ledger(), int(clock.now)
    ledger.record_request("vision/a", PastRequest(first_submitted, "half", 1))
    record_seconds(ledger, clock, 30, [HALF_GPU])
    ledger.event("vision/a", "deleted", "")
    record_seconds(ledger, clock, 30, [])
    ledger.forget("vision/a")
    second_submitted = int(clock.now)
    ledger.record_request("vision/a", PastRequest(second_submitted, "whole", 1))
    clock.now += 30
    record_seconds(ledger, clock, 40, [HALF_GPU])

    expected = [(first_submitted, "half", 1), (second_submitted, "whole", 1)]
    assert requests(await ledger.past(first_submitted - 1)) == expected
    await ledger.flush()
    ledger.close()
    assert requests(await open_ledger().past(first_submitted - 1)) == expected


async def test_workload_without_a_recorded_request_has_an_empty_request(open_ledger, clock):
    ledger, start = open_ledger(), clock.now
    record_seconds(ledger, clock, 20, [HALF_GPU])

    assert requests(await ledger.past(start - 1)) == [(start, "", 1)]


@on_each_database
async def test_workload_request_is_dropped_after_400_days_like_its_events(open_ledger, clock, rows):
    ledger = open_ledger()
    ledger.record_request("vision/a", PastRequest(int(clock.now), "half", 1))
    await ledger.flush()
    days = 86_400
    ledger._store.drop_old(clock.now + 400 * days)
    assert rows("SELECT asked FROM requests") == [("half",)]

    ledger._store.drop_old(clock.now + 400 * days + 1)

    assert rows("SELECT asked FROM requests") == []
