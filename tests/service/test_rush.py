"""Those refused in a rush are told to come again in turn, and then go before who has just come."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from runai.hub_service.api.rush import (
    AGAIN,
    FIRST,
    GRACE_S,
    LATER,
    LATEST_S,
    LOOK_BACK_S,
    MOST,
    SLOWEST,
    SOONEST_S,
    Rush,
)


def rush(rate: float, *, until: float = 100.0) -> Rush:
    """Make one that has seen so much done a second for a while."""
    seen, at = Rush(), until - 4 * LOOK_BACK_S
    while at < until:
        seen.done(at)
        at += 1 / rate
    return seen


@pytest.mark.parametrize("rate", [20, 100])
def test_as_many_come_again_each_second_as_were_done(rate):
    seen = rush(rate)

    waits = [seen.wait(None, 100.0) for _ in range(5 * rate)]

    assert waits[0] == SOONEST_S
    assert waits[-1] == pytest.approx(SOONEST_S + 5, rel=0.1)


def test_nobody_is_told_to_wait_for_ever():
    seen = Rush()

    assert max(seen.wait(None, 1.0) for _ in range(100_000)) == LATEST_S


def test_a_rush_that_is_over_is_forgotten():
    seen = Rush()
    for _ in range(1000):
        seen.wait(None, 1.0)

    assert seen.wait(None, 1.0 + 2 * LATEST_S) == SOONEST_S


@given(some.lists(some.tuples(some.booleans(), some.floats(0, 10)), max_size=200))
def test_every_wait_is_within_bounds_whatever_happened(events):
    seen, now = Rush(), 0.0
    for is_done, later in events:
        now += later
        if is_done:
            seen.done(now)
        else:
            assert seen.wait(None, now) + 1e-6 >= SOONEST_S
            assert seen.wait(None, now) <= LATEST_S + 1 / SLOWEST + 1e-6


def test_who_comes_when_told_goes_before_who_has_just_come():
    seen = Rush()
    assert not seen.admits("ana", 8, 8, 0.0)
    due = seen.wait("ana", 0.0)

    assert not seen.admits("mia", 8 // FIRST, 8, due)
    assert seen.admits("ana", 7, 8, due)
    assert seen.admits("mia", 7, 8, due), "nobody is on their way back any more"


def test_no_place_stands_empty_for_who_is_on_the_way():
    seen = Rush()
    seen.wait("ana", 0.0)

    assert seen.admits("mia", 8 // FIRST - 1, 8, 1.0)
    assert seen.admits("mia", 0, 1, 1.0), "even of a single one"


def test_who_comes_too_early_keeps_the_turn_and_no_more():
    seen = Rush()
    due = seen.wait("ana", 0.0)

    assert not seen.admits("ana", 8 // FIRST, 8, due - 1.5)
    assert seen.wait("ana", due - 1.5) == SOONEST_S
    assert not seen.admits("ana", 8, 8, due)
    assert seen.wait("ana", due) == SOONEST_S, "all places are taken: in a moment, not last again"
    assert seen.admits("ana", 7, 8, due + SOONEST_S)


def test_who_does_not_come_again_is_not_waited_for():
    seen = Rush()
    gone = LATER * seen.wait("ana", 0.0) + GRACE_S

    assert not seen.admits("mia", 7, 8, gone)
    assert seen.admits("mia", 7, 8, gone + 0.1)


def test_who_cannot_be_known_again_has_no_turn():
    seen = Rush()
    seen.wait(None, 0.0)

    assert seen.admits("mia", 7, 8, SOONEST_S)


def test_a_flood_of_refusals_takes_bounded_memory():
    seen = Rush()
    for who in range(MOST + 10):
        seen.wait(who, 0.0)

    assert not seen.admits(MOST - 1, 8, 8, LATEST_S)
    assert seen.admits(MOST - 1, 7, 8, LATEST_S)
    assert not seen.admits(MOST, 7, 8, LATEST_S), "was not remembered: comes as if new"


@given(some.integers(120, 200), some.randoms(use_true_random=False))
@settings(max_examples=20)
def test_however_many_come_nobody_waits_much_longer_than_the_rest(come, chance):
    """For ten seconds so many come in each, and 100 are done."""
    seen, done_each, most = Rush(), 0.01, 64
    coming = [(n / come, n) for n in range(10 * come)]
    begun = {who: at for at, who in coming}
    waited, ends = list[float](), deque[float]()
    while coming:
        now, who = heappop(coming)
        while ends and ends[0] <= now:
            seen.done(ends.popleft())
        if seen.admits(who, len(ends), most, now):
            ends.append(max(now, ends[-1] if ends else 0.0) + done_each)
            waited.append(ends[-1] - begun[who])
        else:
            wait = seen.wait(who, now) * chance.uniform(1, LATER)
            heappush(coming, (now + wait, who))

    backlog_s = 10 * (come / 100 - 1)
    assert max(waited) <= LATER * (backlog_s + 2 * SOONEST_S)


def test_those_whose_turn_had_come_and_who_found_no_place_come_again_one_after_the_other():
    seen = rush(100)
    due = max(seen.wait(who, 100.0) for who in range(400)) + 100.0
    for n in range(1, 1 + int(100 * (due - 100.0))):
        seen.done(100.0 + n / 100)

    waits = [seen.wait(who, due) for who in range(400)]

    assert waits[0] == SOONEST_S
    assert waits[-1] == pytest.approx(SOONEST_S + 400 / (AGAIN * 100), rel=0.1)
    assert seen.admits(0, 7, 8, due), "they go before who has just come, whenever they come"


def test_asking_again_does_not_take_the_time_of_what_is_asked_for():
    """Twice as many come for a minute as can be done, and each refusal costs a third as much."""
    seen, chance = Rush(), Random(1)
    done_each, refused_each, come, most, patience = 0.01, 0.003, 200, 256, 90.0
    coming = [(n / come, n) for n in range(60 * come)]
    begun = {who: at for at, who in coming}
    busy, tries, done, ends = 0.0, 0, 0, deque[float]()
    while coming:
        now, who = heappop(coming)
        while ends and ends[0] <= now:
            seen.done(ends.popleft())
        tries += 1
        if seen.admits(who, len(ends), most, now):
            busy = max(busy, now) + done_each
            ends.append(busy)
            done += 1
            continue
        busy = max(busy, now) + refused_each
        again = now + seen.wait(who, now) * chance.uniform(1, LATER)
        if again - begun[who] < patience:
            heappush(coming, (again, who))

    assert tries < 4 * len(begun)
    assert done * done_each > 0.4 * busy
