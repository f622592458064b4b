"""Detailed explanations of waits, on request or for the policy `explain: "full"` (X).

An explanation has the queue ahead, device holders, counterfactuals and the expected start; its cost
is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from runai.hub_service.scheduler.explanations.counterfactuals import CounterfactualSearch, Trials
from runai.hub_service.scheduler.explanations.device_holders import (
    HolderAllocation,
    HolderAllocations,
)
from runai.hub_service.scheduler.explanations.forecast import (
    DecideFunction,
    expected_start,
    expected_starts,
)
from runai.hub_service.scheduler.explanations.sentences import SentenceFormatter
from runai.hub_service.scheduler.model.explanation import ExpectedStart, Explanation, Holder
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Decision, Plan, Snapshot, Wait, Workload
from runai.hub_service.scheduler.state.project_tree import tree_of

MAX_TRIALS = 32
MAX_CYCLES = 200
MAX_CYCLES_FOR_ALL = 50
MAX_CYCLES_FOR_SOME = 12
"""Less than for all: a user who fills in a form waits for the answer."""
MIN_RUNS = 3
MAX_EXAMINED = 100_000
"""Maximum workers and devices examined in total: a larger cluster gets fewer trials."""
_MAX_LISTED = 8

MayKnow = Callable[[Workload], bool]


def explain_with(
    decide: DecideFunction,
    snapshot: Snapshot,
    plan: Plan,
    workload: str,
    may_know: MayKnow = lambda _workload: True,
) -> Wait | None:
    """Return a workload's wait with its explanation. None if it does not wait in this plan.

    `plan` is the result of `decide` for `snapshot`. Workloads for which `may_know` is False count,
    but are not named. The work is bounded, so an explanation may omit counterfactuals that exist.
    """
    wait = next((d for d in plan.decisions if d.kind == "wait" and d.workload == workload), None)
    target = next((w for w in snapshot.workloads if w.name == workload), None)
    if wait is None or target is None:
        return None
    snapshot = replace(snapshot, policy=replace(snapshot.policy, explain="short"))
    allocations = HolderAllocations(snapshot, plan, target)
    code = wait.reason.code
    trials = Trials(
        snapshot, target, decide, bounded(snapshot, MAX_TRIALS), at_once=code == "stopping"
    )
    formatter = SentenceFormatter(snapshot.now, tree_of(snapshot).projects, may_know)
    search = CounterfactualSearch(snapshot, target, wait.reason, allocations, formatter, trials)
    explanation = Explanation(
        ahead=_ahead(snapshot, plan, wait, target, may_know),
        holders=tuple(_holder(h, may_know) for h in allocations.holders(code)[:_MAX_LISTED]),
        counterfactuals=search.run(),
        expected_start=expected_start(
            snapshot, workload, decide, cycles=bounded(snapshot, MAX_CYCLES)
        ),
    )
    return replace(wait, explanation=explanation)


def forecast_with(
    decide: DecideFunction,
    snapshot: Snapshot,
    plan: Plan,
    only: Collection[str] | None,
) -> dict[str, ExpectedStart]:
    """Return the expected start of each workload that waits in a plan, limited to `only`.

    The sentences name no other workload. The horizon is shorter than that of an explanation, which
    is requested for one workload.
    """
    waiting = [d.workload for d in plan.decisions if d.kind == "wait"]
    if only is not None:
        waiting = [name for name in waiting if name in only]
    snapshot = replace(snapshot, policy=replace(snapshot.policy, explain="short"))
    cycles = bounded(snapshot, MAX_CYCLES_FOR_ALL if only is None else MAX_CYCLES_FOR_SOME)
    return expected_starts(snapshot, waiting, decide, cycles=cycles) if waiting else {}


def explained(decide: DecideFunction, snapshot: Snapshot, plan: Plan) -> Plan:
    """Add an explanation to every wait of a plan (policy `explain: "full"`)."""

    def with_explanation(decision: Decision) -> Decision:
        if decision.kind != "wait":
            return decision
        return explain_with(decide, snapshot, plan, decision.workload) or decision

    return replace(plan, decisions=tuple(with_explanation(decision) for decision in plan.decisions))


def bounded(snapshot: Snapshot, maximum: int) -> int:
    """Reduce a number of trials or cycles to the cluster's size, but not below `MIN_RUNS`."""
    size = sum(len(w.workers) for w in snapshot.workloads) + sum(n.devices for n in snapshot.nodes)
    return max(MIN_RUNS, min(maximum, MAX_EXAMINED // max(1, size)))


def _ahead(
    snapshot: Snapshot, plan: Plan, wait: Wait, target: Workload, may_know: MayKnow
) -> tuple[str, ...]:
    """Return the names ahead of a workload in its project's queue, of those the reader may know."""
    workloads = {workload.name: workload for workload in snapshot.workloads}
    before = [
        workloads[d.workload]
        for d in plan.decisions
        if d.kind == "wait"
        and d.position < wait.position
        and workloads[d.workload].project == target.project
    ]
    return tuple(w.name for w in before if may_know(w))[:_MAX_LISTED]


def _holder(holder: HolderAllocation, may_know: MayKnow) -> Holder:
    is_known = may_know(holder.workload)
    return Holder(
        workload=holder.workload.name if is_known else "",
        project=holder.workload.project,
        user=holder.workload.user if is_known else "",
        gpus=MilliGpu(holder.total),
        until=holder.end.at if holder.end else None,
        is_estimated=holder.end.is_estimated if holder.end else False,
    )
