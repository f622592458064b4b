"""Changes in a hypothetical plan: each has its own effect and no other; workloads served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import job, project, session, snapshot
from runai.hub_service.scheduler import (
    AllowMoves,
    Change,
    ChangeRequest,
    Decision,
    EndWorkloads,
    MilliGpu,
    Project,
    Reason,
    Reserve,
    SetProject,
    Start,
    Stop,
    Unreserve,
    changed,
    serves,
)

SNAPSHOT = snapshot(
    "1x4",
    [project("a", 2), Project(name="b", quota_by_type={"a100": MilliGpu(1000)})],
    [job("x", 2, on="n1:0,1"), job("gang", 1, workers=3, gpu_types=("h100",)), session("ro-1")],
)
REASON = Reason(code="reclaimed", rule="R2", text="")


def test_workload_ended_by_a_what_if_change_is_removed_from_the_snapshot() -> None:
    after = changed(SNAPSHOT, [EndWorkloads(workloads=("x", "unknown"))])

    assert [w.name for w in after.workloads] == ["gang", "ro-1"]
    assert replace(after, workloads=SNAPSHOT.workloads) == SNAPSHOT


@pytest.mark.parametrize(
    ("setting", "value"),
    [("quota", 5000), ("limit", None), ("weight", 3), ("min_runtime", 60), ("never_lent", 1000)],
)
def test_project_setting_of_a_what_if_change_affects_that_project_only(setting, value) -> None:
    after = changed(SNAPSHOT, [SetProject(project="a", setting=setting, value=value)])

    assert after.projects == (
        replace(SNAPSHOT.projects[0], **{setting: value}),
        SNAPSHOT.projects[1],
    )


def test_quota_of_a_what_if_change_replaces_the_quota_table_by_gpu_type() -> None:
    after = changed(SNAPSHOT, [SetProject(project="b", setting="quota", value=5000)])

    assert (after.projects[1].quota, after.projects[1].quota_by_type) == (5000, None)


def test_repeated_what_if_permission_to_move_jobs_adds_one_consolidation_phase() -> None:
    changes: list[Change] = [AllowMoves(), AllowMoves()]
    after = changed(SNAPSHOT, changes)

    assert after.policy.phases == (*SNAPSHOT.policy.phases, "consolidate")


def test_changed_workload_request_leaves_the_rest_of_the_snapshot_unchanged() -> None:
    def change_gang(**fields):
        change = ChangeRequest(workload="gang", **fields)
        after = changed(SNAPSHOT, [change])
        assert [w.name for w in after.workloads] == ["x", "gang", "ro-1"]
        assert (after.workloads[0], after.workloads[2]) == (
            SNAPSHOT.workloads[0],
            SNAPSHOT.workloads[2],
        )
        return after.workloads[1]

    before = SNAPSHOT.workloads[1]
    assert change_gang() == replace(before, min_workers=None)
    fewer = change_gang(workers=2)
    assert (len(fewer.workers), fewer.minimum) == (2, 2)
    assert {w.gpus for w in change_gang(gpus=MilliGpu(500)).workers} == {500}
    assert change_gang(priority=75).rank == 75
    assert not change_gang(preemptible=False).is_preemptible
    assert {w.gpu_types for w in change_gang(anywhere=True).workers} == {()}
    assert {w.gpu_types for w in change_gang(priority=75).workers} == {("h100",)}


def start(worker: str) -> Start:
    return Start(workload="gang", worker=worker, node="n1")


def reserve(worker: str) -> Reserve:
    return Reserve(workload="gang", worker=worker, node="n1")


RUNNING_GANG = job("gang", workers=2, on="n1:0 n1:1")
PENDING_GANG = job("gang", workers=2)
RESERVED_GANG = job("gang", workers=2, on="n1:0 n1:1", state="reserved")
ELASTIC_GANG = job("gang", workers=2, min_workers=1)

SERVED = {
    "running": (RUNNING_GANG, [], True, True),
    "pending": (PENDING_GANG, [], False, False),
    "all workers start": (PENDING_GANG, [start("gang-0"), start("gang-1")], True, True),
    "half of the workers start": (PENDING_GANG, [start("gang-0")], False, False),
    "minimum starts": (ELASTIC_GANG, [start("gang-0")], True, True),
    "different workload starts": (ELASTIC_GANG, [start("other-0")], False, False),
    "all workers are reserved": (PENDING_GANG, [reserve("gang-0"), reserve("gang-1")], True, False),
    "different workload is reserved": (ELASTIC_GANG, [reserve("other-0")], False, False),
    "existing reservation": (RESERVED_GANG, [], True, False),
    "reserved workers start": (RESERVED_GANG, [start("gang-0"), start("gang-1")], True, True),
    "reservation of one worker ends": (
        RESERVED_GANG,
        [Unreserve(workload="gang", worker="gang-1")],
        False,
        False,
    ),
    "one worker stops": (
        RUNNING_GANG,
        [Stop(workload="gang", worker="gang-0", reason=REASON)],
        False,
        False,
    ),
    "already stopping": (job("gang", on="n1:0", state="stopping"), [], False, False),
}


@pytest.mark.parametrize(
    ("workload", "decisions", "is_served", "at_once"), SERVED.values(), ids=SERVED
)
def test_plan_serves_a_workload_if_it_runs_or_gets_its_minimum_workers(
    workload, decisions: list[Decision], *, is_served: bool, at_once: bool
) -> None:
    assert serves(decisions, workload) is is_served
    assert serves(decisions, workload, at_once=True) is at_once
