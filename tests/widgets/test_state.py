"""The page's state: tables made from overviews."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from overviews import NOON, overview, project, workload
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.schemas import ReasonView
from runai.widgets import state


def panel_of(*workloads, projects=(), simulated=True):
    cluster_overview = overview(*workloads, projects=tuple(projects), simulated=simulated)
    return state.panel_state(cluster_overview, user="bob", projects=["vision"], chart=None)


@pytest.mark.parametrize(
    ("job", "labels"),
    [
        pytest.param(workload("a", "running"), ["Suspend", "Stop"], id="running job"),
        pytest.param(workload("a", "paused"), ["Suspend", "Stop"], id="paused by the scheduler"),
        pytest.param(workload("a", "suspended"), ["Resume", "Stop"], id="suspended by its user"),
        pytest.param(workload("a", "stopping"), ["Stop"], id="stopping"),
        pytest.param(workload("a", "succeeded"), ["Delete"], id="finished job"),
        pytest.param(workload("a", kind="session"), ["Stop"], id="running session"),
        pytest.param(workload("a", "ended", kind="session"), ["Delete"], id="ended session"),
        pytest.param(workload("a", manageable=False), [], id="workload of another user"),
    ],
)
def test_panel_row_has_buttons_only_for_actions_that_the_service_accepts(job, labels):
    rows = panel_of(job)["workloads"]

    assert [action["label"] for action in rows[0]["actions"]] == labels


def test_panel_lists_only_my_workloads_with_the_latest_ended_last():
    ended = [
        workload(f"end-{n}", "succeeded", finished=NOON + timedelta(minutes=n)) for n in range(7)
    ]

    rows = panel_of(*ended, workload("b"), workload("c", "queued"), workload("x", user="patty"))

    assert [row["name"] for row in rows["workloads"]] == [
        *("b", "c"),
        *("end-6", "end-5", "end-4", "end-3", "end-2"),
    ]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        pytest.param(None, "", id="no reason"),
        pytest.param(ReasonView(code="x", text="It waits."), "It waits.", id="reason"),
        pytest.param(
            ReasonView(code="x", text="It waits.", position=2),
            "It waits (place 2 in the queue)",
            id="reason and queue position",
        ),
    ],
)
def test_reason_of_a_waiting_job_includes_its_queue_position(reason, sentence):
    assert panel_of(workload("a", "queued", reason=reason))["workloads"][0]["reason"] == sentence


@pytest.mark.parametrize(
    ("own_projects", "expected"),
    [
        pytest.param(["vision"], ["vision"], id="member"),
        pytest.param(["nlp", "vision"], ["vision", "nlp"], id="two: platform's order"),
        pytest.param([], ["vision", "nlp"], id="admin without a project: all"),
        pytest.param(["gone"], [], id="deleted project: none"),
    ],
)
def test_quota_bars_are_of_my_projects(own_projects, expected):
    cluster_overview = overview(projects=(project("vision"), project("nlp")))

    bars = state.quota_state(cluster_overview, projects=own_projects)["projects"]

    assert [bar["name"] for bar in bars] == expected


def test_quota_bar_includes_sessions_over_quota_and_utilization():
    vision = project(
        "vision", allocated=3.5, build_allocated=0.5, over_quota=1, utilized=2.25, waiting=2
    )

    bars = panel_of(projects=[vision])["projects"]

    assert bars == [
        {
            "name": "vision",
            "quota": 2.5,
            "quota_parts": "",
            "allocated": 3.5,
            "sessions": 0.5,
            "over_quota": 1.0,
            "utilized": 2.25,
            "waiting": 2,
        }
    ]


def test_panel_marks_simulated_gpus():
    assert [panel_of(simulated=simulated)["simulated"] for simulated in (True, False)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("workloads", "usage"),
    [
        pytest.param([], (0, 0), id="nothing runs: zero"),
        pytest.param([workload("a", allocated=1)], (1, None), id="not measured: unknown"),
        pytest.param(
            [workload("a", allocated=1, utilized=0.5), workload("b", allocated=0.5, utilized=0.25)],
            (1.5, 0.75),
            id="two jobs of mine: sums",
        ),
        pytest.param(
            [workload("a", allocated=1, utilized=0.5), workload("x", user="patty", allocated=1)],
            (1, 0.5),
            id="jobs of other users: not included",
        ),
    ],
)
def test_my_usage_sums_my_allocated_and_utilized_gpus(workloads, usage):
    assert state.my_usage(overview(*workloads), "bob") == usage


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({}, ("running", "Suspend"), id="no answer: unchanged"),
        pytest.param({"vision/a": None}, ("deleted", ""), id="answer that it is deleted"),
        pytest.param(
            {"vision/a": workload("a", "queued", manageable=False)},
            ("queued", ""),
            id="answer with its state",
        ),
    ],
)
def test_job_absent_from_an_overview_is_deleted_only_by_the_services_answer(answers, expected):
    first = state.jobs_state(
        overview(workload("a")), ["vision/a"], before=[], left_out={}, notes=[]
    )

    updated = state.jobs_state(
        overview(), ["vision/a"], before=first["workloads"], left_out=answers, notes=[]
    )

    [row] = updated["workloads"]
    assert (row["state"], "".join(action["label"] for action in row["actions"][:1])) == expected


def test_job_missing_before_its_first_overview_is_not_deleted():
    first = state.jobs_state(overview(), ["vision/a"], before=[], left_out={}, notes=[])

    assert first["workloads"] == []


def test_submission_notes_are_visible_while_the_job_waits():
    def notes(job_state):
        job_overview = overview(workload("a", job_state))
        return state.jobs_state(
            job_overview, ["vision/a"], before=[], left_out={}, notes=["No node has 8."]
        )["notes"]

    assert (notes("queued"), notes("running")) == (["No node has 8."], [])


def test_panel_row_of_a_shared_gpu_has_the_memory_limit_and_notice():
    limit = {"memory_mib": 8192, "tier": "frameworks", "badge": "soft limit", "why": "Kept."}
    shared = workload("a", limit=limit, notice="uses too much")
    panel = panel_of(shared, workload("b"))

    first, second = panel["workloads"]
    assert (first["limit"], first["limit_why"], first["notice"]) == (
        "soft limit",
        "8.0 GiB: Kept.",
        "a uses too much",
    )
    assert (second["limit"], second["notice"]) == ("", "")
    assert panel["notes"] == [COMPUTE_IS_SHARED]


def test_panel_shows_the_cpu_and_memory_that_an_unfinished_workload_requests():
    requested: dict[str, Any] = {"gpus": 0, "cpu": 4, "memory_mib": 16_384}
    ended = workload("b", "succeeded", finished=NOON, **requested)

    rows = panel_of(workload("a", **requested), workload("c"), ended)["workloads"]

    assert {row["name"]: row["beside"] for row in rows} == {
        "a": "4 CPUs and 16 GiB of memory",
        "b": "",
        "c": "",
    }


ELASTIC = {"least": 1, "training": 2, "most": 4, "text": "2 of 1 to 4 GPUs"}


@pytest.mark.parametrize(
    ("elastic", "expected"),
    [
        (None, ""),
        (ELASTIC, "trains on 2 of 1 to 4 GPUs"),
        (
            {**ELASTIC, "speed": "9 samples/s on 1 GPU"},
            "trains on 2 of 1 to 4 GPUs · 9 samples/s on 1 GPU",
        ),
    ],
    ids=["not elastic", "size", "size and speed"],
)
def test_elastic_job_row_shows_its_gpus_and_speed(elastic, expected):
    [row] = panel_of(workload("a", elastic=elastic))["workloads"]

    assert row["elastic"] == expected


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, []),
        (2, [{"verb": "scale", "label": "Add a worker", "workers": 3}]),
        (
            4,
            [
                {"verb": "scale", "label": "Add a worker", "workers": 5},
                {"verb": "scale", "label": "Remove a worker", "workers": 3},
            ],
        ),
    ],
    ids=["one worker", "two workers", "four workers"],
)
def test_elastic_job_row_offers_to_add_or_remove_a_worker(workers, expected):
    [row] = panel_of(workload("a", manageable=True, elastic={**ELASTIC, "workers": workers}))[
        "workloads"
    ]

    assert [action for action in row["actions"] if action["verb"] == "scale"] == expected


IDLE = {"since": NOON, "text": "idle for 12 min", "takes": "release", "keeps_left": 2}


@pytest.mark.parametrize(
    ("fields", "idle_text", "labels"),
    [
        pytest.param(
            {"kind": "session", "idle": IDLE | {"releasable": True}},
            "idle for 12 min",
            ["Keep 30 more minutes", "Give GPU back", "Stop"],
            id="idle session",
        ),
        pytest.param(
            {"kind": "session", "idle": IDLE | {"keeps_left": 0, "releasable": True}},
            "idle for 12 min",
            ["Give GPU back", "Stop"],
            id="idle session without keeps left",
        ),
        pytest.param(
            {"kind": "session", "idle": IDLE},
            "idle for 12 min",
            ["Keep 30 more minutes", "Stop"],
            id="idle pod that cannot release",
        ),
        pytest.param(
            {"kind": "session", "idle": IDLE | {"keeps_left": 0, "releasing": True}},
            "idle for 12 min",
            ["Stop"],
            id="being released",
        ),
        pytest.param(
            {"kind": "session", "released": NOON}, "", ["Get GPU back", "Stop"], id="released"
        ),
        pytest.param(
            {"kind": "session", "released": NOON, "state": "queued"},
            "",
            ["Stop"],
            id="waiting for its GPU",
        ),
        pytest.param(
            {"idle": IDLE | {"keeps_left": 0}}, "idle for 12 min", ["Suspend", "Stop"], id="job"
        ),
        pytest.param({"kind": "session"}, "", ["Stop"], id="session in use"),
    ],
)
def test_panel_row_with_idle_gpus_offers_to_extend_or_release_them(fields, idle_text, labels):
    (row,) = panel_of(workload("a", **fields))["workloads"]

    assert (row["idle"], [action["label"] for action in row["actions"]]) == (idle_text, labels)
