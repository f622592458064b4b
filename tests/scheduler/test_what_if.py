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
    other = changed(SNAPSHOT, [EndWorkloads(workloads=("x", "nobody"))])

    assert [w.name for w in other.workloads] == ["gang", "ro-1"]
    assert replace(other, workloads=SNAPSHOT.workloads) == SNAPSHOT


@pytest.mark.parametrize(
    ("setting", "value"),
    [("quota", 5000), ("limit", None), ("weight", 3), ("min_runtime", 60), ("never_lent", 1000)],
)
def test_project_setting_of_a_what_if_change_affects_that_project_only(setting, value) -> None:
    other = changed(SNAPSHOT, [SetProject(project="a", setting=setting, value=value)])

    assert other.projects == (
        replace(SNAPSHOT.projects[0], **{setting: value}),
        SNAPSHOT.projects[1],
    )


def test_quota_of_a_what_if_change_replaces_the_quota_table_by_gpu_type() -> None:
    other = changed(SNAPSHOT, [SetProject(project="b", setting="quota", value=5000)])

    assert (other.projects[1].quota, other.projects[1].quota_by_type) == (5000, None)


def test_repeated_what_if_permission_to_move_jobs_adds_one_consolidation_phase() -> None:
    changes: list[Change] = [AllowMoves(), AllowMoves()]
    other = changed(SNAPSHOT, changes)

    assert other.policy.phases == (*SNAPSHOT.policy.phases, "consolidate")


def test_changed_workload_request_leaves_the_rest_of_the_snapshot_unchanged() -> None:
    def gang(**fields):
        change = ChangeRequest(workload="gang", **fields)
        other = changed(SNAPSHOT, [change])
        assert [w.name for w in other.workloads] == ["x", "gang", "ro-1"]
        assert (other.workloads[0], other.workloads[2]) == (
            SNAPSHOT.workloads[0],
            SNAPSHOT.workloads[2],
        )
        return other.workloads[1]

    before = SNAPSHOT.workloads[1]
    assert gang() == replace(before, min_workers=None)
    fewer = gang(workers=2)
    assert (len(fewer.workers), fewer.minimum) == (2, 2)
    assert {w.gpus for w in gang(gpus=MilliGpu(500)).workers} == {500}
    assert gang(priority=75).rank == 75
    assert not gang(preemptible=False).is_preemptible
    assert {w.gpu_types for w in gang(anywhere=True).workers} == {()}
    assert {w.gpu_types for w in gang(priority=75).workers} == {("h100",)}


def start(worker: str) -> Start:
    return Start(workload="gang", worker=worker, node="n1")


def reserve(worker: str) -> Reserve:
    return Reserve(workload="gang", worker=worker, node="n1")


GANG = job("gang", workers=2, on="n1:0 n1:1")
PENDING = job("gang", workers=2)
RESERVED = job("gang", workers=2, on="n1:0 n1:1", state="reserved")
ELASTIC = job("gang", workers=2, min_workers=1)

SERVED = {
    "it runs": (GANG, [], True, True),
    "it pends": (PENDING, [], False, False),
    "it starts": (PENDING, [start("gang-0"), start("gang-1")], True, True),
    "half of it starts": (PENDING, [start("gang-0")], False, False),
    "its minimum starts": (ELASTIC, [start("gang-0")], True, True),
    "another starts": (ELASTIC, [start("other-0")], False, False),
    "it is reserved for": (PENDING, [reserve("gang-0"), reserve("gang-1")], True, False),
    "another is reserved for": (ELASTIC, [reserve("other-0")], False, False),
    "its reservation stands": (RESERVED, [], True, False),
    "its reservation starts": (RESERVED, [start("gang-0"), start("gang-1")], True, True),
    "its reservation ends": (
        RESERVED,
        [Unreserve(workload="gang", worker="gang-1")],
        False,
        False,
    ),
    "one of it stops": (
        GANG,
        [Stop(workload="gang", worker="gang-0", reason=REASON)],
        False,
        False,
    ),
    "it stops already": (job("gang", on="n1:0", state="stopping"), [], False, False),
}


@pytest.mark.parametrize(
    ("workload", "decisions", "is_served", "at_once"), SERVED.values(), ids=SERVED
)
def test_plan_serves_a_workload_if_it_runs_or_gets_its_minimum_workers(
    workload, decisions: list[Decision], *, is_served: bool, at_once: bool
) -> None:
    assert serves(decisions, workload) is is_served
    assert serves(decisions, workload, at_once=True) is at_once
