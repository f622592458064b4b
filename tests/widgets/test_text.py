"""The text form of the views, for terminals and wherever no live view can be shown."""

from __future__ import annotations

from datetime import timedelta

import pytest

from overviews import NOON, project, workload
from runai.hub_service.client.texts import SIMULATED_NOTE, clock
from runai.hub_service.wire.schemas import Fact, HistoryView, ReasonView, WorkloadDetail
from runai.widgets import text


def test_quota_bars_in_text_contain_sessions_jobs_over_quota_and_free_quota():
    bars = text.quota_bars(
        [
            project("vision", allocated=4, build_allocated=0.5, over_quota=1.5, utilized=3.1),
            project("nlp", allocated=0.5, build_allocated=0.5, waiting=1),
        ],
        simulated=True,
    )

    assert bars.splitlines() == [
        "vision ██▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒ 4 allocated of 2.5 quota, 1.5 over quota, 78 % utilized",
        "nlp    ██··········         0.5 allocated of 2.5 quota, 1 workload waiting",
        "█ sessions  ▓ jobs  ▒ over quota  · free quota   (simulated GPUs)",
    ]


def test_quota_bars_without_a_project_suggest_to_contact_an_admin():
    assert text.quota_bars([]) == "You are in no project. Ask an admin to add you to one."


def test_workload_table_has_allocation_utilization_and_wait_reason():
    reason = ReasonView(code="no_room", text="All 5 GPUs are allocated.", position=1)
    waits = "All 5 GPUs are allocated (place 1 in the queue)"

    table = text.workload_table(
        [
            workload("a", allocated=1, utilized=0.5, utilized_average=0.75, simulated=True),
            workload("b", "queued", reason=reason),
        ],
        NOON + timedelta(minutes=5),
    )

    assert table.splitlines() == [
        "NAME  PROJECT  USER  STATE    GPUS  UTIL  AGE  REASON",
        "a     vision   bob   running  1/1   50%*  5m",
        f"b     vision   bob   queued   0/1   -     5m   {waits}",
        "",
        SIMULATED_NOTE,
    ]


@pytest.mark.parametrize(
    ("fields", "request_text"),
    [
        pytest.param({"gpus": 2}, "asks for 2 GPUs", id="GPUs"),
        pytest.param({"gpus": 0, "cpu": 0.5}, "asks for 0.5 CPUs", id="CPU"),
        pytest.param(
            {"gpus": 1, "cpu": 4, "memory_mib": 2048},
            "asks for 1 GPU, 4 CPUs and 2 GiB of memory",
            id="GPUs, CPUs and memory",
        ),
    ],
)
def test_workload_line_of_a_waiting_job_shows_its_request(fields, request_text):
    assert (
        text.workload_line(workload("a", "queued", **fields))
        == f"vision/a: queued · {request_text}"
    )


def test_job_description_in_text_has_request_history_and_source():
    view = workload("a", allocated=1, utilized=0.5, simulated=True, pauses=1, attempts=2)
    detail = WorkloadDetail.model_validate(
        {
            **view.model_dump(),
            "facts": [
                Fact(label="Utilized", text="50% now"),
                Fact(label="Command", text="python train.py"),
            ],
            "source": "print(1)\nprint(2)",
            "history": [HistoryView(at=NOON, kind="queued", text="Submitted by bob.")],
        }
    )

    lines = text.describe(detail).splitlines()

    assert lines[:2] == ["Utilized: 50% now", "Command:  python train.py"]
    assert lines[-5:] == [
        "History:",
        f"  {clock(NOON)}  queued      Submitted by bob.",
        "Source:",
        "  print(1)",
        "  print(2)",
    ]
