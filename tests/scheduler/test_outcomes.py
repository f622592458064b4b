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

REASON = Reason(code="reclaimed", rule="R2", text="")
PENDING_JOB = job("x", 1)
RUNNING_JOB = job("x", 1, on="n1:0")
STOP = Stop(workload="x", worker="x-0", reason=REASON)

OUTCOMES = {
    "running": (RUNNING_JOB, [], "runs"),
    "started": (PENDING_JOB, [Start(workload="x", worker="x-0", node="n1")], "starts"),
    "reserved": (PENDING_JOB, [Reserve(workload="x", worker="x-0", node="n1")], "starts later"),
    "stopped": (RUNNING_JOB, [STOP], "stops"),
    "moved": (
        RUNNING_JOB,
        [Move(workload="x", worker="x-0", node="n1", devices=(), reason=REASON)],
        "moves",
    ),
    "resized": (
        RUNNING_JOB,
        [Resize(workload="x", worker="x-0", node="n1", devices=(), reason=REASON)],
        "resizes",
    ),
    "waiting": (PENDING_JOB, [Wait(workload="x", reason=REASON, position=1)], "waits"),
}


@pytest.mark.parametrize(("workload", "decisions", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_workload_outcome_follows_from_the_plans_decisions_about_it(
    workload: Workload, decisions: list[Decision], expected: str
) -> None:
    decisions_about_y: list[Decision] = [Stop(workload="y", worker="y-0", reason=REASON)]
    plan = Plan(decisions=(*decisions_about_y, *decisions))

    assert outcomes(snapshot("1x4", [project("p")], [workload]), plan) == {"x": expected}


class CountingWait(Wait):
    """A wait that counts how often its workload is read."""

    reads = 0

    def __getattribute__(self, name: str) -> object:
        CountingWait.reads += name == "workload"
        return super().__getattribute__(name)


def test_plan_comparison_for_many_workloads_reads_each_decision_a_few_times() -> None:
    jobs = [job(f"x{n}", 1) for n in range(500)]
    waits = tuple(
        CountingWait(workload=w.name, reason=REASON, position=n) for n, w in enumerate(jobs)
    )
    cluster_snapshot, plan = snapshot("1x1", [project("p")], jobs), Plan(decisions=waits)
    CountingWait.reads = 0

    compare((cluster_snapshot, plan), (cluster_snapshot, plan), added=(), knows=lambda _: True)

    # A search through all decisions for each job would read 500 x 500 times.
    assert CountingWait.reads <= 5 * len(jobs)
