"""Those refused in a rush are told to come again one after the other, as fast as work is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from runai.hub_service.api.rush import LATEST_S, LOOK_BACK_S, SLOWEST, SOONEST_S, Rush


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

    waits = [seen.wait(100.0) for _ in range(5 * rate)]

    assert waits[0] == SOONEST_S
    assert waits[-1] == pytest.approx(SOONEST_S + 5, rel=0.1)


def test_nobody_is_told_to_wait_for_ever():
    seen = Rush()

    assert max(seen.wait(1.0) for _ in range(100_000)) == LATEST_S


def test_a_rush_that_is_over_is_forgotten():
    seen = Rush()
    for _ in range(1000):
        seen.wait(1.0)

    assert seen.wait(1.0 + 2 * LATEST_S) == SOONEST_S


@given(some.lists(some.tuples(some.booleans(), some.floats(0, 10)), max_size=200))
def test_every_wait_is_within_bounds_whatever_happened(events):
    seen, now = Rush(), 0.0
    for is_done, later in events:
        now += later
        if is_done:
            seen.done(now)
        else:
            assert seen.wait(now) + 1e-6 >= SOONEST_S
            assert seen.wait(now) <= LATEST_S + 1 / SLOWEST + 1e-6
