"""Facts of a workload: the lines that every surface shows, and who may see which."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runai.hub_service.api.views.viewer import _shared_names
from runai.hub_service.api.views.workload_facts import workload_facts
from runai.hub_service.client.texts import described
from runai.hub_service.wire.device_schemas import LimitView
from runai.hub_service.wire.schemas import (
    DeviceShareView,
    ElasticView,
    Fact,
    IdleView,
    ReasonView,
    WorkerView,
    WorkloadDetail,
    WorkloadView,
)
from runai.hub_service.wire.workload_request import SubmitRequest

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SUBMITTED = NOW - timedelta(minutes=5)
RUNNING_JOB = {
    "id": "vision/exp-1",
    "project": "vision",
    "name": "exp-1",
    "user": "bob",
    "kind": "job",
    "state": "running",
    "preemptible": True,
    "priority": 50,
    "gpus": 1,
    "submitted": SUBMITTED,
    "allocated": 1,
    "measured": {"utilized": 0.8, "utilized_average": 0.75, "memory_used_mib": 1536},
    "simulated": True,
    "workers": [
        WorkerView(
            name="w-0",
            index=0,
            state="running",
            node="box",
            devices=[DeviceShareView(device=3, uuid="GPU-3", gpus=1)],
        )
    ],
}


SPEC_NAMES = """
array array_index elastic gpu_memory_mib gpu_types gpus id kind max_runtime memory_mib min_workers
name preemptible priority project saves server user workers
"""
RECORD_NAMES = """
allocated attempts elastic exit_code failures finished id killed left moved pauses reason released
saves started state states submitted uid unsaved workers
"""


@pytest.mark.parametrize(
    ("view", "more_of_spec", "more_of_record"),
    [
        pytest.param(WorkloadView, "", "", id="list"),
        pytest.param(
            WorkloadDetail,
            "code command source umask workdir",
            "checkpoint_dir code log_dir",
            id="detail",
        ),
    ],
)
def test_views_copy_these_stored_fields_alone(view, more_of_spec, more_of_record):
    of_spec, of_record = _shared_names(view)

    # Whoever sees a workload sees them: extend the list only for fields that all may see.
    assert sorted(of_spec) == sorted(SPEC_NAMES.split() + more_of_spec.split())
    assert sorted(of_record) == sorted(RECORD_NAMES.split() + more_of_record.split())


def test_workload_facts_leave_out_fields_without_a_value():
    detail = WorkloadDetail(
        **RUNNING_JOB,
        command=["python", "train.py", "--name", "a b"],
        workdir="/home/bob",
        checkpoint_dir="/data/checkpoints",
    )

    facts = {fact.label: fact.text or fact.at for fact in workload_facts(detail, NOW)}

    assert facts == {
        "Name": "exp-1",
        "Project": "vision",
        "User": "bob",
        "Kind": "job, preemptible",
        "State": "running",
        "GPUs asked": "1",
        "Allocated": "1 on box:3",
        "Utilized": "80% now, 75% on average while allocated (simulated)",
        "Memory used": "1.5G",
        "Priority": "50",
        "Submitted": SUBMITTED,
        "Attempts": "0 (0 paused, 0 failed)",
        "Command": "python train.py --name 'a b'",
        "Directory": "/home/bob",
        "Checkpoints": "/data/checkpoints",
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"options": {"backoff_limit": 3, "grace_seconds": 130, "image": "example/a:1"}},
            {"Retries": "3", "Grace period": "130s", "Image": "example/a:1"},
            id="further options",
        ),
        pytest.param(
            {
                "limit": LimitView(
                    memory_mib=8192,
                    tier="driver",
                    badge="hard limit",
                    why="The driver refuses more.",
                ),
                "notice": "uses too much",
            },
            {
                "Memory limit": "8G, hard limit: The driver refuses more.",
                "Sharing": "You get the memory shown. Compute is shared equally with active users"
                " of the same GPU.",
                "Notice": "uses too much",
            },
            id="memory limit",
        ),
        pytest.param(
            {
                "elastic": ElasticView(
                    least=1, training=2, most=4, text="2 of 1 to 4 GPUs", speed="9 samples/s"
                )
            },
            {"Elastic": "2 of 1 to 4 GPUs", "Speed": "9 samples/s"},
            id="size and speed of an elastic job",
        ),
        pytest.param(
            {"state": "paused", "reason": ReasonView(code="reclaimed", text="nlp needs its GPUs")},
            {"State": "paused", "Reason": "nlp needs its GPUs"},
            id="reason of a pause",
        ),
        pytest.param(
            {"idle": IdleView(since=NOW, text="idle for 12 min")},
            {"Idle": "idle for 12 min"},
            id="idle GPUs",
        ),
        pytest.param(
            {"env_names": ["A", "TOKEN"]}, {"Variables": "A, TOKEN"}, id="names of variables"
        ),
        pytest.param(
            {"measured": {"gpu_hours": 0.0004}}, {"GPU-hours": "< 0.001"}, id="few GPU-hours"
        ),
        pytest.param(
            {
                "max_runtime": 28800,
                "run_time": {"ran_s": 3600, "runs_since": NOW - timedelta(hours=2)},
            },
            {"Time limit": "8h of running, 3 hours used"},
            id="used part of the time limit",
        ),
    ],
)
def test_workload_facts_include_optional_fields(fields, expected):
    detail = WorkloadDetail(**{**RUNNING_JOB, **fields})

    facts = {fact.label: fact.text for fact in workload_facts(detail, NOW)}

    assert {label: facts[label] for label in expected} == expected


def test_facts_of_a_job_that_never_had_gpus_have_no_measurements():
    waiting = WorkloadDetail(**{**RUNNING_JOB, "allocated": 0, "workers": [], "measured": {}})

    labels = {fact.label for fact in workload_facts(waiting, NOW)}

    assert "Allocated" in labels
    assert labels.isdisjoint({"Utilized", "Memory used", "GPU-hours"})


def test_facts_link_to_the_project_and_from_an_element_to_its_array():
    element = WorkloadDetail(
        **{**RUNNING_JOB, "id": "vision/a-b-3", "name": "a-b-3", "array": 9, "array_index": 3}
    )

    links = {fact.label: fact.link for fact in workload_facts(element, NOW) if fact.link}

    assert links == {"Project": "projects/vision", "Array index": "workloads/vision/a-b"}


@pytest.mark.parametrize(
    ("distance", "ending"),
    [
        pytest.param(timedelta(minutes=-5), "(5m ago)", id="past"),
        pytest.param(timedelta(hours=2), "(in 2h)", id="future"),
    ],
)
def test_fact_with_a_time_says_how_far_away_it_is(distance, ending):
    detail = WorkloadDetail(**RUNNING_JOB, facts=[Fact(label="Ends", text="", at=NOW + distance)])

    [(label, text)] = described(detail, None, NOW)

    assert label == "Ends"
    assert text.endswith(ending)


async def test_names_of_variables_are_shown_to_the_owner_alone(simulated):
    owner, admin = await simulated.client("ana"), await simulated.client("vic")
    env = {"WANDB_MODE": "offline", "HF_TOKEN": "planted"}
    await owner.submit(SubmitRequest(name="exp1", command=["true"], env=env))

    views = {"ana": await owner.workload("vision/exp1"), "vic": await admin.workload("vision/exp1")}

    variables = {
        name: [fact.text for fact in view.facts if fact.label == "Variables"]
        for name, view in views.items()
    }
    assert variables == {"ana": ["HF_TOKEN, WANDB_MODE"], "vic": []}
    assert not any("planted" in view.model_dump_json() for view in views.values())
