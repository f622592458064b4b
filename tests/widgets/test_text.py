"""The text form of the views, for terminals and wherever no live view can be shown."""

from __future__ import annotations

import pytest

from overviews import NOON, project, workload
from runai.hub_service.wire.schemas import HistoryView, ReasonView, WorkloadDetail
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
        ]
    )

    assert table.splitlines() == [
        "NAME  PROJECT  USER  KIND  STATE    GPUS  UTILIZED  AVERAGE  REASON",
        "a     vision   bob   job   running  1/1   50 %      75 %",
        f"b     vision   bob   job   queued   0/1   -         -        {waits}",
        "",
        "(simulated GPUs)",
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
            "command": ["python", "train.py"],
            "workdir": "/home/bob",
            "source": "print(1)\nprint(2)",
            "history": [HistoryView(at=NOON, kind="queued", text="Submitted by bob.")],
        }
    )

    lines = text.describe(detail).splitlines()

    assert [
        line for line in lines if line.split(":")[0] in {"Utilized", "Attempts", "Command"}
    ] == [
        "Utilized:    50 % now, simulated GPUs",
        "Attempts:    2, 1 pause, 0 failures of 1 allowed",
        "Command:     python train.py",
    ]
    assert lines[-5:] == [
        "History:",
        "  2026-05-04 12:00:00  queued      Submitted by bob.",
        "Source:",
        "  print(1)",
        "  print(2)",
    ]
