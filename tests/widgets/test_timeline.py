"""The averages in the chart, by (second, allocated GPUs, utilized GPUs); None is a lost link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.widgets.timeline import Timeline


def timeline_of(*updates, window_s=60, step_s=4):
    timeline = Timeline(window_s, step_s)
    for update in updates:
        timeline.push(*update) if update else timeline.lose()
    return timeline.points()


@pytest.mark.parametrize(
    ("updates", "points"),
    [
        pytest.param([(0, 1, 0.5)], [], id="single update: no point yet"),
        pytest.param([(0, 1, 0.5), (4, 0, 0)], [(4, 1, 0.5)], id="value until the next update"),
        pytest.param(
            [(0, 1, 1), (1, 0, 0), (4, 0, 0)], [(4, 0.25, 0.25)], id="average weighted by time"
        ),
        pytest.param([(2, 2, 1), (6, 2, 1)], [(4, 2, 1), (8, 2, 1)], id="value over two steps"),
        pytest.param([(0, 1, None), (4, 1, None)], [(4, 1, None)], id="not measured: unknown"),
        pytest.param(
            [(0, 1, 0), (4, 1, 0), None, (40, 1, 0), (44, 1, 0)],
            [(4, 1, 0), (8, None, None), (44, 1, 0)],
            id="lost link: gap",
        ),
        pytest.param(
            [(0, 1, 0), (4, 1, 0), None, (68, 2, 0), (72, 2, 0)],
            [(72, 2, 0)],
            id="points older than the window: dropped",
        ),
        pytest.param([(4, 1, 1), (4, 2, 2), (3, 1, 1)], [], id="update from the past: ignored"),
    ],
)
def test_panel_chart_points_are_averages_over_steps(updates, points):
    assert timeline_of(*updates) == points


def test_panel_chart_continues_after_the_loaded_history():
    timeline = Timeline(60, 4)
    timeline.load([(4, 1.0, 0.5), (12, 1.0, None), (20, None, None)], step_s=8)
    timeline.push(24, 2, 1)
    timeline.push(28, 2, 1)

    assert timeline.points() == [
        *[(0, 1, 0.5), (4, 1, 0.5), (8, 1, None), (12, 1, None)],
        *[(16, None, None), (28, 2, 1)],
    ]


@given(st.lists(st.tuples(st.integers(1, 80), st.integers(0, 8)), min_size=2, max_size=30))
def test_gpu_seconds_in_the_panel_chart_are_independent_of_update_intervals(intervals):
    timeline = Timeline(window_s=10_000, step_s=4)
    second, expected_gpu_s = 0.0, 0.0
    for tenths, allocated in intervals:
        timeline.push(second, allocated, None)
        second += tenths / 10
        expected_gpu_s += allocated * tenths / 10
    timeline.push(second, 0, None)

    gpu_s = sum(step.allocated.gpu_seconds for step in timeline._steps.values())

    assert gpu_s == pytest.approx(expected_gpu_s)
