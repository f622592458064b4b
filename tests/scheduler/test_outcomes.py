"""Outcomes in a plan: each kind of decision, and the cost of many."""

from __future__ import annotations

import pytest

from builders import job, project, snapshot
from runai.hub_service.scheduler import (
    Decision,
    Move,
    Plan,
    Reason,
    Reserve,
    Resize,
    Start,
    Stop,
    Wait,
    Workload,
    compare,
)
from runai.hub_service.scheduler.explanations.outcomes import outcomes

WHY = Reason(code="reclaimed", rule="R2", text="")
PENDING = job("x", 1)
RUNNING = job("x", 1, on="n1:0")
STOP = Stop(workload="x", worker="x-0", reason=WHY)

OUTCOMES = {
    "running": (RUNNING, [], "runs"),
    "started": (PENDING, [Start(workload="x", worker="x-0", node="n1")], "starts"),
    "reserved": (PENDING, [Reserve(workload="x", worker="x-0", node="n1")], "starts later"),
    "stopped": (RUNNING, [STOP], "stops"),
    "moved": (
        RUNNING,
        [Move(workload="x", worker="x-0", node="n1", devices=(), reason=WHY)],
        "moves",
    ),
    "resized": (
        RUNNING,
        [Resize(workload="x", worker="x-0", node="n1", devices=(), reason=WHY)],
        "resizes",
    ),
    "waiting": (PENDING, [Wait(workload="x", reason=WHY, position=1)], "waits"),
}


@pytest.mark.parametrize(("workload", "decisions", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_workload_outcome_follows_from_the_plans_decisions_about_it(
    workload: Workload, decisions: list[Decision], expected: str
) -> None:
    other: list[Decision] = [Stop(workload="y", worker="y-0", reason=WHY)]
    plan = Plan(decisions=(*other, *decisions))

    assert outcomes(snapshot("1x4", [project("p")], [workload]), plan) == {"x": expected}


class CountingWait(Wait):
    """A wait that counts how often its workload is read."""

    reads = 0

    def __getattribute__(self, name: str) -> object:
        CountingWait.reads += name == "workload"
        return super().__getattribute__(name)


def test_plan_comparison_for_many_workloads_reads_each_decision_a_few_times() -> None:
    many = [job(f"x{n}", 1) for n in range(500)]
    waits = tuple(CountingWait(workload=w.name, reason=WHY, position=n) for n, w in enumerate(many))
    cluster_snapshot, plan = snapshot("1x1", [project("p")], many), Plan(decisions=waits)
    CountingWait.reads = 0

    compare((cluster_snapshot, plan), (cluster_snapshot, plan), (), lambda _: True)

    assert CountingWait.reads <= 5 * len(many)
