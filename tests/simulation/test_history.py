"""Replays of a platform's own history: with unchanged settings, every decision recurs.

The real controller, bookkeeping and ledger produce the history in virtual time (`live`). It is
read in the form that the API returns, and replayed. In these stories every input of the decisions
matters: a replay that lacked one would decide otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runai.hub_service.controller.history_recorder import HistoryRecorder
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.model.request_codec import request_of
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Worker, Workload
from runai.hub_service.scheduler.model.snapshot_json import snapshot_to_json
from runai.hub_service.simulation.engine import Run, Setting, simulate
from runai.hub_service.simulation.jobs import PERMILLE
from runai.hub_service.simulation.platform_history import EVERY_S, CurrentCluster, left_out, rows_of
from runai.hub_service.simulation.settings import projects_for_core
from runai.hub_service.simulation.traces import TraceRow
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.usage_schemas import PastWorkload
from virtual_platform import Log, Submission, VirtualPlatform, lines

NODES = {"old": (2, "NVIDIA L4"), "new": (2, "NVIDIA A100"), "shared": (1, "NVIDIA L4")}
PROJECTS = [
    ProjectSpec("a", quota=MilliGpu(3000), min_runtime=120),
    ProjectSpec("b", quota=MilliGpu(2000)),
]
POLICY = Policy(packing="spread", users_take_turns=True)


def job(name: str, gpus: float, **fields: Any) -> WorkloadSpec:
    project, _, short = name.partition("/")
    fields = {"user": "ana", "priority": 50, **fields}
    return WorkloadSpec(
        project, short, kind="job", command=("true",), gpus=MilliGpu(round(1000 * gpus)), **fields
    )


SUBMISSIONS_WITH_RECLAIM: list[Submission] = [  # time in s, job with GPUs, duration in s
    (0, job("a/first", 1, gpu_types=("NVIDIA L4",)), 200),  # on the GPU type that it requests
    (0, job("a/half", 0.5), 300),
    (5, job("a/gang", 1, workers=3, min_workers=3), 400),
    (10, job("a/low", 1, priority=25, user="cy"), 100),
    (20, job("a/late", 1, priority=75, user="bo"), 90),  # overtakes the waiting jobs
    (25, job("a/other", 1, user="bo"), 80),
    (30, job("b/own", 2), 150),  # reclaims after a's jobs have run for two minutes
    (40, job("b/memory", 0, gpu_memory_mib=4000), 70),
]


def play_and_record(
    submissions: Sequence[Submission], folder: Path, policy: Policy = POLICY
) -> tuple[Log, list[PastWorkload], CurrentCluster]:
    """Run the submissions; return the decisions, the recorded past and today's settings."""

    async def play() -> tuple[Log, list[PastWorkload], CurrentCluster]:
        platform = VirtualPlatform(submissions, NODES, PROJECTS, policy, EVERY_S)
        ledger = Ledger(folder / "ledger.sqlite", clock=lambda: float(platform.now))
        platform.on_change = HistoryRecorder(
            platform.cluster, ledger, platform.controller.changes, lambda: float(platform.now)
        ).record_changes
        log = await platform.log()
        platform.now += 60
        await ledger.flush()
        past = [
            PastWorkload(
                id=usage.workload,
                project=usage.project,
                user=usage.user,
                kind="job",
                submitted=datetime.fromtimestamp(usage.submitted, UTC),
                gpus=usage.allocated_s / usage.runtime_s,
                held_s=usage.runtime_s,
                starts=usage.starts,
                asked=json.loads(usage.request),
            )
            for usage in await ledger.past(0.0)
            if usage.runtime_s
        ]
        ledger.close()
        return log, past, CurrentCluster.read(snapshot_to_json(platform.controller.last.snapshot))

    return asyncio.run(play())


def replay_decisions(rows: Sequence[TraceRow], today: CurrentCluster) -> Log:
    log: Log = []
    setting = Setting(
        nodes=today.nodes,
        projects=projects_for_core(today.specs, today.created),
        policy=today.policy,
        every=EVERY_S,
        beyond=PERMILLE,
    )
    simulate(rows, "quota", setting, alone={}, on_plan=lambda at, p: log.append((at, lines(p))))
    return log


def without_waits(log: Log) -> Log:
    """Return the log without waits, and without cycles that only had waits."""
    acting = [(at, [line for line in plan if line[0] != "wait"]) for at, plan in log]
    return [(at, plan) for at, plan in acting if plan]


def test_replay_of_unchanged_history_makes_the_same_decisions(tmp_path):
    decisions, past, today = play_and_record(SUBMISSIONS_WITH_RECLAIM, tmp_path)

    kinds = {kind for _cycle_time, plan in decisions for kind, *_ in plan}
    assert kinds >= {"start", "stop", "reserve", "wait"}
    assert max(workload.starts for workload in past) > 1  # a paused job was started again
    replay = replay_decisions(rows_of(past), today)
    assert without_waits(replay) == without_waits(decisions)


@given(
    job_values=st.lists(
        st.tuples(
            st.sampled_from("ab"),  # project
            st.integers(0, 200),  # submission in seconds
            st.sampled_from([0.5, 1, 2]),  # GPUs
            st.integers(61, 300),  # duration in seconds
            st.sampled_from([25, 50, 75]),  # priority
            st.sampled_from([(), ("NVIDIA A100",), ("NVIDIA L4",)]),  # requested types
            st.sampled_from(["ana", "bo"]),  # user
        ),
        min_size=1,
        max_size=8,
    ),
    packing=st.sampled_from(["binpack", "spread", "frag"]),
    takes_turns=st.booleans(),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_replay_of_generated_history_makes_the_same_decisions(
    job_values, packing, takes_turns, tmp_path_factory
):
    submissions = [
        (at, job(f"{project}/{n}", gpus, priority=priority, gpu_types=types, user=user), duration)
        for n, (project, at, gpus, duration, priority, types, user) in enumerate(job_values)
    ]
    # One pause a job: a job paused again within a minute has not even read its checkpoint.
    policy = Policy(packing=packing, users_take_turns=takes_turns, max_pauses_per_hour=1)
    decisions, past, today = play_and_record(submissions, tmp_path_factory.mktemp("past"), policy)

    replay = replay_decisions(rows_of(past), today)
    assert without_waits(replay) == without_waits(decisions)


@pytest.mark.parametrize(
    ("request_fields", "cause"),
    [
        pytest.param({"workers": [{"count": 0}]}, "too many workers, or none", id="count of 0"),
        pytest.param({"workers": [{"count": 10**9}]}, "too many workers, or none", id="10^9"),
        pytest.param({"workers": [{"count": "3"}]}, "no list of objects with a count", id="text"),
        pytest.param({"workers": ["w"]}, "no list of objects with a count", id="no objects"),
        pytest.param({"workers": []}, "it has no workers", id="no workers"),
        pytest.param({"workers": [{}], "later": 1}, "later", id="unknown field later"),
    ],
)
def test_malformed_past_request_raises_invalid_request_with_the_cause(request_fields, cause):
    past = past_workload(asked=request_fields)

    with pytest.raises(InvalidRequest, match=cause) as raised:
        rows_of([past])

    assert raised.value.hint == "Is this client as new as the platform?"


@pytest.mark.parametrize("saves", [True, False], ids=["checkpointing", "not checkpointing"])
def test_replayed_job_is_checkpointing_if_it_was_recorded_as_checkpointing(saves):
    workload = Workload(
        name="a/x", project="a", workers=(Worker(name="x-0", gpus=MilliGpu(1000)),), saves=saves
    )
    recorded_request = json.loads(request_of(workload))

    (row,) = rows_of([past_workload(asked=recorded_request)])

    assert row.request is not None
    assert row.request.saves is saves


# ---- durations, and unknown fields


def past_workload(**fields: Any) -> PastWorkload:
    defaults: dict[str, Any] = {
        "id": "a/x",
        "project": "a",
        "user": "ana",
        "kind": "job",
        "submitted": datetime.fromtimestamp(1000, UTC),
        "gpus": 2.0,
        "held_s": 600.0,
    }
    return PastWorkload.model_validate(defaults | fields)


FOUR_WORKERS_OR_FEWER = {"workers": [{"count": 4, "gpus": 1}], "min_workers": 1}
FOUR_OF_1_TO_8_GPUS = {"workers": [{"gpus": 4}], "gpus_min": 1, "gpus_max": 8}


@pytest.mark.parametrize(
    ("fields", "duration_s"),
    [
        pytest.param({}, 600, id="no recorded request"),
        pytest.param({"asked": {"workers": [{"gpus": 2}]}}, 600, id="request of the two GPUs"),
        pytest.param({"starts": 3}, 600 - 2 * 60, id="two pauses, which lose a minute each"),
        pytest.param({"starts": 20}, 1, id="more pauses than minutes"),
        pytest.param({"starts": 0}, 600, id="unrecorded start"),
        pytest.param({"asked": FOUR_WORKERS_OR_FEWER}, 300, id="two of four elastic workers"),
        pytest.param({"asked": FOUR_OF_1_TO_8_GPUS}, 300, id="two of four requested GPUs"),
    ],
)
def test_replayed_duration_excludes_pauses_and_assumes_all_requested_gpus(fields, duration_s):
    workload = past_workload(gpus=2.0, held_s=600.0, **fields)

    (row,) = rows_of([workload])

    assert row.duration_s == duration_s


def replay_on_one_node(past: Sequence[PastWorkload], gpus: int) -> tuple[Log, Run]:
    log: Log = []
    today = CurrentCluster.read(
        {"nodes": [{"name": "n", "devices": gpus}], "projects": [{"name": "a", "quota": 8}]}
    )
    setting = Setting(
        nodes=today.nodes, projects=projects_for_core(today.specs), every=1, beyond=PERMILLE
    )
    run = simulate(
        rows_of(past), "quota", setting, alone={}, on_plan=lambda at, p: log.append((at, lines(p)))
    )
    return log, run


@pytest.mark.parametrize(
    ("request_fields", "gpus"),
    [(FOUR_WORKERS_OR_FEWER, 4), (FOUR_OF_1_TO_8_GPUS, 8)],
    ids=["1 to 4 workers", "1 worker of 1 to 8 GPUs"],
)
def test_replayed_elastic_job_uses_idle_gpus_and_speeds_up_accordingly(request_fields, gpus):
    submitted = datetime.fromtimestamp(1000, UTC)
    past = past_workload(asked=request_fields, submitted=submitted, gpus=2.0, held_s=600.0)

    [(first_cycle, plan), *_], run = replay_on_one_node([past], gpus)

    gpus_at_start = sum(len(devices) for *_, devices in plan)
    assert first_cycle == 1000
    assert gpus_at_start == gpus
    assert run.results.jct_mean_h == pytest.approx(600 * 2 / gpus / 3600)


def test_replayed_resizable_worker_yields_gpus_and_regains_them():
    resizable = past_workload(
        id="a/resizable", submitted=datetime.fromtimestamp(1000, UTC), held_s=600.0, gpus=4.0,
        asked=FOUR_OF_1_TO_8_GPUS,
    )  # fmt: skip
    rigid = past_workload(
        id="a/rigid", submitted=datetime.fromtimestamp(1100, UTC), held_s=100.0, gpus=4.0,
        asked={"workers": [{"gpus": 4}]},
    )  # fmt: skip

    log, run = replay_on_one_node([resizable, rigid], gpus=8)

    decisions = [decision for _cycle_time, plan in log for decision in plan]
    sizes = [len(devices) for kind, *_, devices in decisions if kind == "resize"]
    assert sizes == [4, 8]  # the resizable job began on all eight
    assert run.results.jobs == 2
    assert run.results.pauses == 0


def test_unknown_policy_field_of_a_newer_platform_is_refused():
    with pytest.raises(InvalidRequest, match="colour"):
        CurrentCluster.read({"policy": {"colour": "red"}})


def report_sentences(past: Sequence[PastWorkload], **today: Any) -> list[str]:
    current = CurrentCluster.read({"projects": [{"name": "a", "quota": 8}], **today})
    replayable = [workload for workload in past if workload.project == "a"]
    return list(left_out(past, rows_of(replayable), current))[1:]


@pytest.mark.parametrize(
    ("past", "today", "sentence"),
    [
        ([past_workload(asked={"workers": [{"gpus": 2}]})], {}, None),
        ([past_workload()], {}, "1 job is of before it was written down what is asked for"),
        (
            [past_workload(project="gone"), past_workload(project="gone")],
            {},
            "2 jobs are of projects that are",
        ),
        (
            [past_workload(asked=FOUR_WORKERS_OR_FEWER)],
            {},
            "1 job is elastic: taken to be as fast as they have GPUs.",
        ),
        ([], {"policy": {"history_weight": 2}}, "The policy's history_weight counts for nothing"),
        ([], {"nodes": [{"name": "n7", "schedulable": False}]}, "taken to have worked: n7."),
        ([], {"nodes": [{"name": "n", "devices": 2, "broken_devices": [1]}]}, "to have worked: n."),
    ],
    ids=[
        *("nothing missing", "no recorded request", "two jobs of a deleted project", "elastic job"),
        *("policy with history", "cordoned node", "broken device"),
    ],
)
def test_replay_report_states_each_gap_and_assumption_in_the_history(past, today, sentence):
    reported = report_sentences(past, **today)

    assert len(reported) == (0 if sentence is None else 1)
    assert all(sentence in line for line in reported)
