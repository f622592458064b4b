"""Tables and descriptions for people, complete, as printed into a pipe."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.cli.output import render, tables
from runai.hub_service.wire.device_schemas import (
    AllocationView,
    DeviceView,
    NodeView,
    OthersView,
)
from runai.hub_service.wire.schemas import (
    DeviceShareView,
    IdleView,
    MeasuredView,
    ProjectView,
    ReasonView,
    RunTimeView,
    WorkerView,
    WorkloadView,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORKLOAD_TABLE = tables.workload_table(NOW)


def workload(name, state="running", gpus=1.0, **fields):
    defaults = {
        "id": f"vision/{name}",
        "project": "vision",
        "name": name,
        "user": "bob",
        "kind": "job",
        "state": state,
        "preemptible": True,
        "priority": 50,
        "gpus": gpus,
        "submitted": NOW - timedelta(minutes=5),
        "manageable": True,
    }
    return WorkloadView(**(defaults | fields))


def worker(index, devices, state="running"):
    shares = [DeviceShareView(device=d, uuid=f"GPU-{d}", gpus=1) for d in devices]
    return WorkerView(name=f"w-{index}", index=index, state=state, node="box", devices=shares)


RUNNING_JOB = workload(
    "exp-1",
    allocated=1,
    measured=MeasuredView(utilized=0.8, utilized_average=0.75, memory_used_mib=1536),
    simulated=True,
    workers=[worker(0, [3])],
)
QUEUED_JOB = workload(
    "exp-2",
    "queued",
    submitted=NOW - timedelta(seconds=8),
    reason=ReasonView(code="no_room", text="all 5 GPUs are in use", position=2),
)
MEMORY_JOB = workload("exp-3", "suspended", gpus=0, gpu_memory_mib=4096, pauses=2)
ENDED_SESSION = workload(
    "lab-ana",
    "ended",
    gpus=0.5,
    kind="session",
    user="ana",
    project="nlp",
    id="nlp/lab-ana",
    submitted=NOW - timedelta(days=3),
    reason=ReasonView(code="exit_code", text="stopped by ana"),
)


@pytest.fixture
def print_table(capsys):
    def print_items(table, items, *, wide=False):
        table.show(items, wide=wide)
        return capsys.readouterr().out

    return print_items


def test_workload_table_has_states_gpus_and_reasons(print_table):
    expected = """\
NAME     PROJECT  USER  STATE      GPUS   UTIL  AGE  REASON
exp-1    vision   bob   running    1/1    80%*  5m
exp-2    vision   bob   queued     0/1    -     8s   all 5 GPUs are in use (place 2 in the queue)
exp-3    vision   bob   suspended  0/4G   -     5m
lab-ana  nlp      ana   ended      0/0.5  -     3d
"""
    assert expected == print_table(
        WORKLOAD_TABLE, [RUNNING_JOB, QUEUED_JOB, MEMORY_JOB, ENDED_SESSION]
    )


def test_wide_workload_table_adds_devices_gpu_types_and_moves(print_table):
    job = RUNNING_JOB.model_copy(
        update={
            "moved": "moved to n2 to make room for nlp/a",
            "gpu_types": ["H100", "L4"],
            "workers": [worker(0, [3]).model_copy(update={"gpu_type": "H100"})],
        }
    )
    expected = (
        "NAME   PROJECT  USER  STATE      GPUS  UTIL  AGE  KIND  PRIORITY  WORKERS  DEVICES"
        "  GPU TYPE                        CPUS  MEMORY  AVG UTIL  GPU MEMORY  PAUSES"
        "  MOVED                         REASON\n"
        "exp-1  vision   bob   running    1/1   80%*  5m   job   50        1        box:3  "
        "  H100 (asked for H100, else L4)  -     -       75%*      1.5G        0"
        "       to n2 to make room for nlp/a\n"
        "exp-3  vision   bob   suspended  0/4G  -     5m   job   50        1        -      "
        "  -                               -     -       -         -           2       -\n"
    )
    assert expected == print_table(WORKLOAD_TABLE, [job, MEMORY_JOB], wide=True)


def test_project_table_has_quotas_and_utilization(print_table):
    vision = ProjectView(
        name="vision",
        quota=2.5,
        build_quota=1,
        allocated=4,
        build_allocated=0.5,
        over_quota=1.5,
        utilized=3,
        waiting=2,
    )
    unlimited = ProjectView(name="free", quota=None, build_quota=None)

    expected = """\
NAME    ALLOCATED  QUOTA  OVER QUOTA  BUILD  BUILD QUOTA  UTIL  WAITING
vision  4          2.5    1.5         0.5    1            75%   2
free    0          none   0           0      none         -     0
"""
    assert expected == print_table(tables.project_table(), [vision, unlimited])


def test_node_table_shows_holders_of_each_device_and_marks_simulated_ones(print_table):
    devices = [
        DeviceView(
            device=0,
            uuid="SIM-0",
            name="Simulated GPU",
            memory_mib=16384,
            simulated=True,
            allocated=1,
            utilized=0.25,
            memory_used_mib=512,
            allocations=[
                AllocationView(workload="v/a", user="bob", gpus=0.5),
                AllocationView(workload="", user="", gpus=0.5),
            ],
            others=[
                OthersView(account="eve", processes=2, utilized=0.1, memory_mib=2048),
            ],
        ),
        DeviceView(device=1, uuid="GPU-1", name="H200", memory_mib=143771, simulated=False),
        DeviceView(
            device=2,
            uuid="GPU-2",
            name="H200",
            memory_mib=143771,
            simulated=False,
            healthy=False,
            fault="XID 48: double-bit ECC error",
        ),
    ]

    expected = """\
NODE  GPU  DEVICE          ALLOCATED  UTIL  MEMORY    HELD BY
box   0    Simulated GPU*  1          25%*  512M/16G  v/a 0.5, another project 0.5, others (eve) 2G
box   1    H200            0          -     -/140G    -
box   2    H200 broken     0          -     -/140G    -
"""
    device_rows = tables.devices_of([NodeView(name="box", devices=devices)])
    assert expected == print_table(tables.node_table(), device_rows)
    states = [str(row[-2]) for row in tables.node_table().rows(device_rows, wide=True)]
    assert states == ["healthy", "healthy", "XID 48: double-bit ECC error"]


def test_table_prints_markup_in_user_names_as_text(print_table):
    assert "[red]eve[/red]" in print_table(
        WORKLOAD_TABLE, [workload("exp-1", user="[red]eve[/red]")]
    )


def test_workload_table_has_the_time_limit_end_once_its_warning_is_due():
    end, a_second_ago = NOW + timedelta(seconds=500), NOW - timedelta(seconds=1)
    rows = WORKLOAD_TABLE.rows(
        [
            workload("soon", run_time=RunTimeView(ends_at=end, warns_at=a_second_ago)),
            workload("later", run_time=RunTimeView(ends_at=end, warns_at=end)),
        ]
    )

    assert [str(row[-1]) for row in rows] == ["its time limit ends it in 8 min", ""]


def test_workload_tables_reason_column_explains_idle_and_released_gpus(print_table):
    idle = IdleView(since=NOW, text="idle for 12 min, its GPU goes to others in 18 min")
    release_reason = ReasonView(code="released", text="idle for 30 min")
    rows = WORKLOAD_TABLE.rows(
        [
            workload("a", idle=idle),
            workload("b", kind="session", released=NOW, reason=release_reason),
        ]
    )

    assert [str(row[-1]) for row in rows] == [idle.text, release_reason.text]


def test_rows_added_to_a_table_align_with_its_columns(capsys):
    layout = WORKLOAD_TABLE.show([RUNNING_JOB, ENDED_SESSION])
    WORKLOAD_TABLE.show([workload("a", "queued")], below=layout)

    assert (
        capsys.readouterr().out
        == """\
NAME     PROJECT  USER  STATE    GPUS   UTIL  AGE  REASON
exp-1    vision   bob   running  1/1    80%*  5m
lab-ana  nlp      ana   ended    0/0.5  -     3d
a        vision   bob   queued   0/1    -     5m
"""
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=3))
@pytest.mark.parametrize(
    ("output", "parse"),
    [pytest.param("json", json.loads, id="json"), pytest.param("yaml", yaml.safe_load, id="yaml")],
)
def test_json_and_yaml_output_round_trips_without_control_characters(output, parse, reply):
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as out:
        render.show_data(reply, output)
        out.flush()
        text = out.buffer.getvalue().decode()

    assert parse(text) == reply
    assert text.replace("\n", "").isprintable()
