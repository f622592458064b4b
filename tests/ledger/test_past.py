"""Past workloads, deleted ones included: the trace that a simulation replays."""

from __future__ import annotations

import pytest

from ledger.databases import on_each_database
from runai.hub_service.ledger import DeviceAllocation, PastRequest

A = DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500)
B = DeviceAllocation("nlp", "bo", "nlp/b", "GPU-1", 1000)


def pass_time(book, clock, seconds, allocations):
    book.record(clock.now, 0.0, allocations)
    for _ in range(seconds):
        clock.now += 1.0
        book.record(clock.now, 1.0, allocations)


def summaries(past):
    return [
        (p.workload, p.project, p.user, p.submitted, pytest.approx(p.runtime_s), p.is_session)
        for p in past
    ]


async def test_workload_history_includes_the_current_allocation_before_a_flush(ledger, clock):
    book, start = ledger(), clock.now
    book.event("vision/a", "queued", "", project="vision", user="ana")
    clock.now += 40
    pass_time(book, clock, 20, [A])

    past = await book.past(start - 1)

    assert summaries(past) == [("vision/a", "vision", "ana", start, 20, False)]
    assert past[0].allocated_s == pytest.approx(10)


@on_each_database
async def test_deleted_workload_and_its_namesake_are_separate_in_the_history(ledger, clock):
    book, start = ledger(), clock.now
    book.event("vision/a", "queued", "")
    pass_time(book, clock, 30, [A])
    book.event("vision/a", "ended", "")
    book.event("vision/a", "deleted", "")
    pass_time(book, clock, 30, [])
    book.forget("vision/a")
    book.event("vision/a", "queued", "")
    second = clock.now
    clock.now += 30
    pass_time(book, clock, 40, [A])
    await book.flush()
    book.close()

    past = await ledger().past(start - 1)

    assert [(p.submitted, p.is_session) for p in past] == [(start, True), (second, False)]
    assert [p.runtime_s for p in past] == pytest.approx([30, 40])


@on_each_database
async def test_workload_history_excludes_workloads_without_an_allocation_since_the_start(
    ledger, clock
):
    book = ledger()
    pass_time(book, clock, 30, [A])
    pass_time(book, clock, 30, [])
    await book.flush()
    book.close()
    clock.now += 1000
    later, book = clock.now, ledger()
    pass_time(book, clock, 30, [B])

    assert [p.workload for p in await book.past(later - 100)] == ["nlp/b"]
    assert [p.workload for p in await book.past(later - 1100)] == ["vision/a", "nlp/b"]


# ---- requests


def requests(past):
    return [(p.submitted, p.request, p.starts) for p in past]


@on_each_database
async def test_workload_history_has_the_last_request_before_and_after_a_flush(ledger, clock):
    book, start = ledger(), int(clock.now)
    book.record_request("vision/a", PastRequest(start, "half", 0))
    pass_time(book, clock, 20, [A])

    assert requests(await book.past(start - 1)) == [(start, "half", 0)]
    await book.flush()
    assert requests(await book.past(start - 1)) == [(start, "half", 0)]
    book.record_request("vision/a", PastRequest(start, "half, urgent", 2))

    assert requests(await book.past(start - 1)) == [(start, "half, urgent", 2)]
    await book.flush()
    book.close()
    assert requests(await ledger().past(start - 1)) == [(start, "half, urgent", 2)]


@on_each_database
async def test_workloads_that_reuse_a_name_have_separate_requests(ledger, clock):
    book, first = ledger(), int(clock.now)
    book.record_request("vision/a", PastRequest(first, "half", 1))
    pass_time(book, clock, 30, [A])
    book.event("vision/a", "deleted", "")
    pass_time(book, clock, 30, [])
    book.forget("vision/a")
    second = int(clock.now)
    book.record_request("vision/a", PastRequest(second, "whole", 1))
    clock.now += 30
    pass_time(book, clock, 40, [A])

    expected = [(first, "half", 1), (second, "whole", 1)]
    assert requests(await book.past(first - 1)) == expected
    await book.flush()
    book.close()
    assert requests(await ledger().past(first - 1)) == expected


async def test_workload_without_a_recorded_request_has_an_empty_request(ledger, clock):
    book, start = ledger(), clock.now
    pass_time(book, clock, 20, [A])

    assert requests(await book.past(start - 1)) == [(start, "", 1)]


@on_each_database
async def test_workload_request_is_dropped_after_400_days_like_its_events(ledger, clock, rows):
    book = ledger()
    book.record_request("vision/a", PastRequest(int(clock.now), "half", 1))
    await book.flush()
    days = 86_400
    book._store.drop_old(clock.now + 400 * days)
    assert rows("SELECT asked FROM requests") == [("half",)]

    book._store.drop_old(clock.now + 400 * days + 1)

    assert rows("SELECT asked FROM requests") == []
