"""The rows of `runai top`, their order, and the line above them."""

from __future__ import annotations

from datetime import timedelta

import pytest

import overviews
from runai.hub_service.cli.output import top_views
from runai.hub_service.cli.output.top_views import TopOptions, headline, select_rows
from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import IdleView, Overview, ProjectView, ReasonView, WorkerView
from runai.hub_service.wire.usage_schemas import UsagePoint, UsageSeries

NOW = overviews.NOON


def workload(name, state="running", allocated=1.0, minutes=5, **fields):
    """Make a job submitted `minutes` ago."""
    since = NOW - timedelta(minutes=minutes)
    return overviews.workload(name, state, allocated=allocated, submitted=since, **fields)


def waiting_job(name, place, **fields):
    reason = ReasonView(code="no_room", text="all are in use", position=place)
    return workload(name, "queued", 0, reason=reason, **fields)


def device(index, **fields):
    return DeviceView(
        device=index, uuid=f"GPU-{index}", name="H200", memory_mib=1024, simulated=False, **fields
    )


OVERVIEW = Overview(
    at=NOW,
    projects=[
        ProjectView(name="vision", quota=2, build_quota=1, allocated=2, utilized=0.4, waiting=2),
        ProjectView(name="nlp", quota=None, build_quota=1, allocated=1, utilized=0.9),
    ],
    workloads=[
        waiting_job("third", 2, minutes=1),
        waiting_job("second", 1, user="patty"),
        workload(
            "lazy", utilized=0.1, idle=IdleView(since=NOW - timedelta(minutes=6), text="idle")
        ),
        workload("busy", utilized=0.9, project="nlp", minutes=9),
        workload("sleeps", utilized=0, idle=IdleView(since=NOW - timedelta(hours=1), text="idle")),
        workload("fresh", workers=[WorkerView(name="w-0", index=0, state="running", node="box")]),
        workload("gone", "succeeded", 0),
    ],
    nodes=[
        NodeView(name="box", devices=[device(0, allocated=1, utilized=0.9), device(1)]),
        NodeView(name="barn", devices=[device(0, allocated=0.5, utilized=0.1), device(10)]),
    ],
)


def selected_names(options):
    selected = select_rows(OVERVIEW, options, NOW)
    return [key.rpartition("/")[2] for key in selected.keys]


JOB_OPTIONS = TopOptions(view="jobs")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            JOB_OPTIONS,
            ["busy", "lazy", "fresh", "sleeps", "second", "third"],
            id="by default running jobs by utilization, then the queue",
        ),
        pytest.param(JOB_OPTIONS.with_idle(only=True), ["sleeps", "lazy"], id="longest idle first"),
        pytest.param(
            JOB_OPTIONS.sorted_by("age"),
            ["busy", "lazy", "fresh", "sleeps", "second", "third"],
            id="by age, the oldest first",
        ),
        pytest.param(
            JOB_OPTIONS.sorted_by("name"),
            ["busy", "fresh", "lazy", "second", "sleeps", "third"],
            id="by name",
        ),
        pytest.param(
            JOB_OPTIONS.sorted_by("name").reversed(),
            ["third", "sleeps", "second", "lazy", "fresh", "busy"],
            id="by name, reversed",
        ),
        pytest.param(TopOptions(view="jobs", user="patty"), ["second"], id="jobs of a user"),
        pytest.param(TopOptions(view="jobs", project="nlp"), ["busy"], id="jobs of a project"),
        pytest.param(TopOptions(view="jobs", node="box"), ["fresh"], id="jobs on a node"),
        pytest.param(
            TopOptions(),
            ["box GPU-0", "box GPU-1", "barn GPU-0", "barn GPU-10"],
            id="nodes in the overview's order",
        ),
        pytest.param(
            TopOptions(sort="util"),
            ["box GPU-0", "barn GPU-0", "box GPU-1", "barn GPU-10"],
            id="by utilization, unmeasured devices last",
        ),
        pytest.param(
            TopOptions(sort="gpu"),
            ["box GPU-0", "barn GPU-0", "box GPU-1", "barn GPU-10"],
            id="by GPU number",
        ),
        pytest.param(TopOptions(node="barn"), ["barn GPU-0", "barn GPU-10"], id="one node"),
        pytest.param(TopOptions(view="projects"), ["vision", "nlp"], id="projects unsorted"),
        pytest.param(
            TopOptions(view="projects", sort="quota"),
            ["nlp", "vision"],
            id="by quota, unlimited first",
        ),
    ],
)
def test_top_views_filter_and_sort_rows_by_the_options(options, expected):
    assert selected_names(options) == expected


def test_top_refuses_an_unknown_sort_column_and_lists_the_known_columns():
    with pytest.raises(InvalidRequest, match="no column 'colour' of nodes") as refused:
        select_rows(OVERVIEW, TopOptions(sort="colour"), NOW)

    assert refused.value.hint is not None
    assert refused.value.hint.startswith("Columns: node, gpu, device, allocated")


def test_top_sort_key_cycles_through_all_columns_and_back_to_the_default():
    options, order = TopOptions(view="projects"), []
    for _ in range(9):  # 8 columns and the default
        options = options.sorted_after(NOW, wide=False)
        order.append(options.sort)

    assert order == [
        *("name", "allocated", "quota", "over quota", "build", "build quota", "util", "waiting"),
        "",
    ]


def test_changed_top_view_retains_the_user_filter_and_resets_the_sort_order():
    options = TopOptions(view="jobs", sort="age", reverse=True, idle=True, user="bob")

    assert options.for_view("nodes") == TopOptions(user="bob")


def test_top_headline_has_gpu_allocation_utilization_and_waiting_job_count():
    text = headline(OVERVIEW)

    assert text == "1.5 of 4 GPUs allocated (38%), 67% of them utilized; 2 waiting"


@pytest.mark.parametrize(
    ("allocated_by_hour", "begin_hour"),
    [
        pytest.param([None, 0.0], None, id="recorded but for one step"),
        pytest.param([None, None, None, 2.0], 3, id="begins within the range"),
        pytest.param([None, None, None], None, id="nothing recorded"),
    ],
)
def test_top_usage_history_begins_at_the_first_recorded_step(allocated_by_hour, begin_hour):
    hour = timedelta(hours=1)
    points = [
        UsagePoint(at=NOW + (index + 1) * hour, allocated=allocated, utilized=None)
        for index, allocated in enumerate(allocated_by_hour)
    ]
    usage = UsageSeries(
        since=NOW,
        until=NOW + len(points) * hour,
        step_s=3600,
        capacity=5,
        points=points,
        allocated_average=None,
        utilized_average=None,
        allocated_gpu_hours=0,
        used_gpu_hours=0,
        idle_gpu_hours=0,
        simulated=True,
    )

    begin = top_views.begin_of_history(usage)

    assert begin == (None if begin_hour is None else NOW + begin_hour * hour)
