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

from live import Live, Log, Submission, lines
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

NODES = {"old": (2, "NVIDIA L4"), "new": (2, "NVIDIA A100"), "shared": (1, "NVIDIA L4")}
PROJECTS = [
    ProjectSpec("a", quota=MilliGpu(3000), min_runtime=120),
    ProjectSpec("b", quota=MilliGpu(2000)),
]
POLICY = Policy(packing="spread", users_take_turns=True)


def job(name: str, gpus: float, **fields: Any) -> WorkloadSpec:
    project, _, short = name.partition("/")
    given: dict[str, Any] = {"user": "ana", "priority": 50, **fields}
    return WorkloadSpec(
        project, short, kind="job", command=("true",), gpus=MilliGpu(round(1000 * gpus)), **given
    )


STORY: list[Submission] = [
    (0, job("a/first", 1, gpu_types=("NVIDIA L4",)), 200),  # on the GPU type that it requests
    (0, job("a/half", 0.5), 300),
    (5, job("a/gang", 1, workers=3, min_workers=3), 400),
    (10, job("a/low", 1, priority=25, user="cy"), 100),
    (20, job("a/late", 1, priority=75, user="bo"), 90),  # overtakes the waiting jobs
    (25, job("a/other", 1, user="bo"), 80),
    (30, job("b/own", 2), 150),  # reclaims after a's jobs have run for two minutes
    (40, job("b/memory", 0, gpu_memory_mib=4000), 70),
]


def played(
    submissions: Sequence[Submission], folder: Path, policy: Policy = POLICY
) -> tuple[Log, list[PastWorkload], CurrentCluster]:
    """Run the submissions; return the decisions, the recorded past and today's settings."""

    async def play_live() -> tuple[Log, list[PastWorkload], CurrentCluster]:
        live = Live(submissions, NODES, PROJECTS, policy, EVERY_S)
        ledger = Ledger(folder / "ledger.sqlite", clock=lambda: float(live.now))
        live.on_change = HistoryRecorder(
            live.cluster,
            ledger,
            live.controller.changes,
            lambda: float(live.now),
            last_snapshot=lambda: live.controller.last.snapshot,
        ).record_changes
        log = await live.log()
        live.now += 60
        await ledger.flush()
        past = [
            PastWorkload(
                id=one.workload,
                project=one.project,
                user=one.user,
                kind="job",
                submitted=datetime.fromtimestamp(one.submitted, UTC),
                gpus=one.allocated_s / one.runtime_s,
                held_s=one.runtime_s,
                starts=one.starts,
                asked=json.loads(one.request),
            )
            for one in await ledger.past(0.0)
            if one.runtime_s
        ]
        ledger.close()
        return log, past, CurrentCluster.read(snapshot_to_json(live.controller.last.snapshot))

    return asyncio.run(play_live())


def replayed(rows: Sequence[TraceRow], today: CurrentCluster) -> Log:
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


def decided(log: Log) -> Log:
    """Return the log without waits, and without cycles that only had waits."""
    did = [(at, [line for line in plan if line[0] != "wait"]) for at, plan in log]
    return [(at, plan) for at, plan in did if plan]


def test_replay_of_unchanged_history_makes_the_same_decisions(tmp_path):
    log, past, today = played(STORY, tmp_path)

    kinds = {line[0] for _, plan in log for line in plan}
    assert kinds >= {"start", "stop", "reserve", "wait"}
    assert max(one.starts for one in past) > 1
    assert decided(replayed(rows_of(past), today)) == decided(log)


@given(
    given_jobs=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 200),
            st.sampled_from([0.5, 1, 2]),
            st.integers(61, 300),
            st.sampled_from([25, 50, 75]),
            st.sampled_from([(), ("NVIDIA A100",), ("NVIDIA L4",)]),
            st.sampled_from(["ana", "bo"]),
        ),
        min_size=1,
        max_size=8,
    ),
    packing=st.sampled_from(["binpack", "spread", "frag"]),
    takes_turns=st.booleans(),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_replay_of_generated_history_makes_the_same_decisions(
    given_jobs, packing, takes_turns, tmp_path_factory
):
    submissions = [
        (at, job(f"{project}/{n}", gpus, priority=priority, gpu_types=types, user=user), duration)
        for n, (project, at, gpus, duration, priority, types, user) in enumerate(given_jobs)
    ]
    # One pause a job: a job paused again within a minute has not even read its checkpoint.
    policy = Policy(packing=packing, users_take_turns=takes_turns, max_pauses_per_hour=1)
    log, past, today = played(submissions, tmp_path_factory.mktemp("past"), policy)

    assert decided(replayed(rows_of(past), today)) == decided(log)


@pytest.mark.parametrize(
    ("request_fields", "why"),
    [
        ({"workers": [{"count": 0}]}, "too many workers, or none"),
        ({"workers": [{"count": 10**9}]}, "too many workers, or none"),
        ({"workers": [{"count": "3"}]}, "no list of objects with a count"),
        ({"workers": ["w"]}, "no list of objects with a count"),
        ({"workers": []}, "it has no workers"),
        ({"workers": [{}], "later": 1}, "later"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_malformed_past_request_raises_invalid_request_with_the_cause(request_fields, why):
    past = past_workload(asked=request_fields)

    with pytest.raises(InvalidRequest, match=why) as raised:
        rows_of([past])

    assert raised.value.hint == "Is this client as new as the platform?"


@pytest.mark.parametrize("saves", [True, False])
def test_replayed_job_is_checkpointing_if_it_was_recorded_as_checkpointing(saves):
    workload = Workload(
        name="a/x", project="a", workers=(Worker(name="x-0", gpus=MilliGpu(1000)),), saves=saves
    )
    request_fields = json.loads(request_of(workload))

    (row,) = rows_of([past_workload(asked=request_fields)])

    assert row.request is not None
    assert row.request.saves is saves


# ---- durations, and unknown fields


def past_workload(**fields: Any) -> PastWorkload:
    given: dict[str, Any] = {
        "id": "a/x",
        "project": "a",
        "user": "ana",
        "kind": "job",
        "submitted": datetime.fromtimestamp(1000, UTC),
        "gpus": 2.0,
        "held_s": 600.0,
        **fields,
    }
    return PastWorkload.model_validate(given)


ELASTIC = {"workers": [{"count": 4, "gpus": 1}], "min_workers": 1}
SIZED = {"workers": [{"gpus": 4}], "gpus_min": 1, "gpus_max": 8}


@pytest.mark.parametrize(
    ("fields", "duration"),
    [
        ({}, 600),
        ({"asked": {"workers": [{"gpus": 2}]}}, 600),
        ({"starts": 3}, 480),  # two of the ten minutes were lost to pauses
        ({"starts": 20}, 1),
        ({"starts": 0}, 600),
        ({"asked": ELASTIC}, 300),  # on average two of its four workers ran
        ({"asked": SIZED}, 300),
    ],
    ids=[
        "as held",
        "as asked",
        "paused",
        "hardly ran",
        "start unseen",
        "elastic",
        "of several sizes",
    ],
)
def test_replayed_duration_excludes_pauses_and_assumes_all_requested_gpus(fields, duration):
    assert [row.duration_s for row in rows_of([past_workload(**fields)])] == [duration]


def on_one_node(past: Sequence[PastWorkload], gpus: int) -> tuple[Log, Run]:
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
    [(ELASTIC, 4), (SIZED, 8)],
    ids=["of several workers", "of several sizes"],
)
def test_replayed_elastic_job_uses_idle_gpus_and_speeds_up_accordingly(request_fields, gpus):
    [(at, plan), *_], run = on_one_node([past_workload(asked=request_fields)], gpus)

    assert (at, sum(len(decision[4]) for decision in plan)) == (1000, gpus)
    assert run.results.jct_mean_h == pytest.approx(600 * 2 / gpus / 3600)


def test_replayed_resizable_worker_yields_gpus_and_regains_them():
    first = past_workload(id="a/sized", asked=SIZED, gpus=4.0, held_s=600.0)
    second = past_workload(
        id="a/second", submitted=datetime.fromtimestamp(1100, UTC), held_s=100.0, gpus=4.0,
        asked={"workers": [{"gpus": 4}]},
    )  # fmt: skip

    log, run = on_one_node([first, second], 8)

    resized = [(at, len(line[4])) for at, plan in log for line in plan if line[0] == "resize"]
    assert [size for _, size in resized] == [4, 8]
    assert run.results.jobs == 2
    assert run.results.pauses == 0


def test_unknown_policy_field_of_a_newer_platform_is_refused():
    with pytest.raises(InvalidRequest, match="colour"):
        CurrentCluster.read({"policy": {"colour": "red"}})


def report_sentences(past: Sequence[PastWorkload], **today: Any) -> list[str]:
    seen = CurrentCluster.read({"projects": [{"name": "a", "quota": 8}], **today})
    known = [one for one in past if one.project == "a"]
    return list(left_out(past, rows_of(known), seen))[1:]


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
            [past_workload(asked=ELASTIC)],
            {},
            "1 job is elastic: taken to be as fast as they have GPUs.",
        ),
        ([], {"policy": {"history_weight": 2}}, "The policy's history_weight counts for nothing"),
        ([], {"nodes": [{"name": "n7", "schedulable": False}]}, "taken to have worked: n7."),
        ([], {"nodes": [{"name": "n", "devices": 2, "broken_devices": [1]}]}, "to have worked: n."),
    ],
    ids=["all", "request", "project", "elastic", "history_weight", "closed", "broken"],
)
def test_replay_report_states_each_gap_and_assumption_in_the_history(past, today, sentence):
    sentences = report_sentences(past, **today)

    assert len(sentences) == (sentence is not None)
    assert all(sentence in one for one in sentences)
