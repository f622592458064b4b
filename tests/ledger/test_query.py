"""The resolution of each query, and the averages computed from totals."""

from __future__ import annotations

import pytest

from runai.hub_service.ledger.query import choose_range

NOW = 1_699_999_200 + 50 * 3600  # a whole hour, but no longer window
MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("age", "step_s", "expected_step"),
    [
        pytest.param(300, None, 10, id="minutes"),
        pytest.param(HOUR, 1, 10, id="never less than ten seconds"),
        pytest.param(HOUR, 15, 20, id="steps are multiples of the grid"),
        pytest.param(HOUR, None, 20, id="an hour"),
        pytest.param(DAY, None, 300, id="a day"),
        pytest.param(3 * DAY, 10, 180, id="older than two days: minutes"),
        pytest.param(30 * DAY, None, 14400, id="a month"),
        pytest.param(30 * DAY, 60, 1740, id="never more than 1500 points"),
        pytest.param(100 * DAY, 60, 2 * HOUR, id="older than 90 days: hours"),
        pytest.param(95 * DAY, 90 * MINUTE, 2 * HOUR, id="whole hours"),
    ],
)
def test_usage_query_step_is_on_the_finest_grid_that_contains_the_range(age, step_s, expected_step):
    found = choose_range(NOW - age, NOW, step_s, now=NOW)

    assert found.step_s == expected_step
    assert len(found.ends) <= 1501


def test_usage_query_range_is_widened_to_the_grid():
    found = choose_range(NOW - 3605.5, NOW - 1802.5, 60, now=NOW)

    assert (NOW - found.since, NOW - found.until) == (3610, 1800)
    assert [NOW - end for end in found.ends[:2]] == [3600, 3540]
    assert found.ends[-1] == found.until


def test_usage_query_steps_are_aligned_to_the_clock():
    found = choose_range(NOW - 3650, NOW, 600, now=NOW)

    assert all(end % 600 == 0 for end in found.ends)


@pytest.mark.parametrize("since", [NOW, NOW + 100])
def test_usage_query_of_a_future_range_is_empty(since):
    found = choose_range(since, since + 60, None, now=NOW)

    assert (found.since, found.until, found.ends) == (NOW, NOW, ())


def test_usage_query_range_ends_now_at_the_latest():
    found = choose_range(NOW - 90.0, NOW + 3.5, None, now=NOW + 3.5)

    assert (found.since, found.until) == (NOW - 90, NOW + 4)
    assert found.pieces() == [(10, NOW - 90, NOW + 10)]


def test_usage_query_of_a_long_range_reads_few_windows():
    found = choose_range(NOW - 7 * HOUR - 10, NOW - 20, 2 * HOUR, now=NOW)

    assert found.pieces() == [
        (10, NOW - 7 * HOUR - 10, NOW - 7 * HOUR),
        (HOUR, NOW - 7 * HOUR, NOW - HOUR),
        (10, NOW - HOUR, NOW - 20),
    ]
