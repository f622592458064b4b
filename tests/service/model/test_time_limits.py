"""Limits of new workloads, the warning before the end, and the bound that the core is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.model import time_limits
from runai.hub_service.model.records import (
    ProjectSpec,
    TimeRules,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.wire.errors import InvalidRequest

HOUR_S = 3600


def project(**rules: int) -> ProjectSpec:
    return ProjectSpec("vision", time_job=TimeRules(**rules))


@pytest.mark.parametrize(
    ("requested", "rules", "limit"),
    [
        (None, {}, None),
        (2 * HOUR_S, {}, 2 * HOUR_S),
        (None, {"default_s": 8 * HOUR_S}, 8 * HOUR_S),
        (None, {"default_s": 8 * HOUR_S, "most_s": 48 * HOUR_S}, 8 * HOUR_S),
        (None, {"most_s": 48 * HOUR_S}, 48 * HOUR_S),
        (48 * HOUR_S, {"default_s": 8 * HOUR_S, "most_s": 48 * HOUR_S}, 48 * HOUR_S),
    ],
    ids=["none", "request", "default", "default below the maximum", "maximum", "up to the maximum"],
)
def test_job_time_limit_is_the_requested_or_else_the_projects_limit(
    requested, rules, limit
) -> None:
    assert limit == time_limits.limit_of(requested, None, "job", project(**rules))


def test_default_job_time_limit_does_not_apply_to_sessions() -> None:
    assert time_limits.limit_of(None, None, "session", project(default_s=HOUR_S)) is None


def test_time_limit_above_the_maximum_is_refused_with_both_values_and_a_hint() -> None:
    with pytest.raises(InvalidRequest) as refused:
        time_limits.limit_of(72 * HOUR_S, None, "job", project(most_s=48 * HOUR_S))

    assert refused.value.code == "over_max_time"
    assert "72h" in refused.value.message
    assert "48h" in refused.value.message
    assert "--time 48h" in refused.value.hint


@pytest.mark.parametrize(
    ("requested", "rules"),
    [(HOUR_S, {}), (None, {"default_s": HOUR_S})],
    ids=["request", "project's default"],
)
def test_expected_runtime_beyond_the_time_limit_is_refused(requested, rules) -> None:
    assert time_limits.limit_of(requested, HOUR_S, "job", project(**rules)) == HOUR_S
    with pytest.raises(InvalidRequest) as refused:
        time_limits.limit_of(requested, HOUR_S + 1, "job", project(**rules))

    assert refused.value.code == "over_time_limit"


def record(limit: int | None, ran_s: float, since: float | None) -> WorkloadRecord:
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("true",), max_runtime=limit)
    blank = WorkloadRecord(spec, WorkloadState.RUNNING, 0.0, ())
    return replace(blank, ran_s=ran_s, runs_since=since)


@pytest.mark.parametrize(
    ("limit", "warn_s", "before_end_s"),
    [(8 * HOUR_S, 600, 600), (1000, 600, 100), (8 * HOUR_S, 60, 60)],
    ids=["project rule", "a tenth of a short limit", "shorter project rule"],
)
def test_time_limit_warning_precedes_the_end_by_project_rule_or_a_tenth(
    limit, warn_s, before_end_s
) -> None:
    running = record(limit, ran_s=0.0, since=1000.0)

    assert time_limits.warns_at(running, project(warn_s=warn_s)) == 1000 + limit - before_end_s


def test_no_time_limit_warning_comes_without_a_limit_or_a_run() -> None:
    assert time_limits.warns_at(record(None, ran_s=0.0, since=0.0), project()) is None
    assert time_limits.warns_at(record(HOUR_S, ran_s=0.0, since=None), project()) is None


@given(
    limit=st.integers(1, 10**6),
    ran_s=st.floats(0, 10**6),
    since=st.floats(0, 10**9),
    delay_s=st.integers(0, 100),
)
def test_scheduler_time_bound_ends_within_two_seconds_after_the_time_limit(
    limit: int, ran_s: float, since: float, delay_s: int
) -> None:
    ran_s, started = min(ran_s, limit), int(since) + delay_s
    end = time_limits.ends_at(record(limit, ran_s, since))
    bound = time_limits.bound_for_core(limit, ran_s, since, started)

    assert end is not None
    assert max(started, end) - 1e-6 <= started + bound <= max(started, end) + 2


def test_scheduler_time_bound_of_a_waiting_workload_is_its_remaining_time() -> None:
    limit_s = 100

    # The scheduler counts whole seconds: 69.5 are rounded up.
    assert time_limits.bound_for_core(limit_s, 30.5, None, None) == 70
    assert time_limits.bound_for_core(limit_s, 130.0, None, None) == 0


@pytest.mark.parametrize(
    ("requested", "rules", "limit"),
    [(None, {}, None), (None, {"default_s": 5}, 5), (9, {"most_s": 7}, 7), (3, {"most_s": 7}, 3)],
    ids=["none", "default", "cut to the maximum", "below the maximum"],
)
def test_externally_created_workload_is_limited_to_the_maximum_time_limit(
    requested, rules, limit
) -> None:
    assert limit == time_limits.limit_within(requested, TimeRules(**rules))
