"""Detailed explanations of waits, on request or for the policy `explain: "full"` (X).

An explanation has the queue ahead, device holders, counterfactuals and the expected start; its cost
is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from runai.hub_service.scheduler.explanations.counterfactuals import CounterfactualSearch, Trials
from runai.hub_service.scheduler.explanations.device_holders import HolderAllocation, Holdings
from runai.hub_service.scheduler.explanations.forecast import (
    DecideFunction,
    expected_start,
    expected_starts,
)
from runai.hub_service.scheduler.explanations.sentences import Wording
from runai.hub_service.scheduler.model.explanation import ExpectedStart, Explanation, Holder
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Decision, Plan, Snapshot, Wait, Workload
from runai.hub_service.scheduler.state.project_tree import tree_of

MOST_TRIALS = 32
MOST_CYCLES = 200
MOST_CYCLES_FOR_ALL = 50
MOST_CYCLES_FOR_SOME = 12
"""Less than for all: a user who fills in a form waits for the answer."""
FEWEST = 3
EFFORT = 100_000
"""Maximum workers and devices examined in total: a larger cluster gets fewer trials."""
_SHOWN = 8

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
    asked = next((w for w in snapshot.workloads if w.name == workload), None)
    if wait is None or asked is None:
        return None
    snapshot = replace(snapshot, policy=replace(snapshot.policy, explain="short"))
    holdings = Holdings(snapshot, plan, asked)
    code = wait.reason.code
    trials = Trials(
        snapshot, asked, decide, bounded(snapshot, MOST_TRIALS), at_once=code == "stopping"
    )
    wording = Wording(snapshot.now, tree_of(snapshot).accounts, may_know)
    search = CounterfactualSearch(snapshot, asked, wait.reason, holdings, wording, trials)
    explanation = Explanation(
        ahead=_ahead(snapshot, plan, wait, asked, may_know),
        holders=tuple(_holder(held, may_know) for held in holdings.holders(code)[:_SHOWN]),
        counterfactuals=search.run(),
        expected_start=expected_start(
            snapshot, workload, decide, cycles=bounded(snapshot, MOST_CYCLES)
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
    cycles = bounded(snapshot, MOST_CYCLES_FOR_ALL if only is None else MOST_CYCLES_FOR_SOME)
    return expected_starts(snapshot, waiting, decide, cycles=cycles) if waiting else {}


def explained(decide: DecideFunction, snapshot: Snapshot, plan: Plan) -> Plan:
    """Add an explanation to every wait of a plan (policy `explain: "full"`)."""

    def with_reason(decision: Decision) -> Decision:
        if decision.kind != "wait":
            return decision
        return explain_with(decide, snapshot, plan, decision.workload) or decision

    return replace(plan, decisions=tuple(with_reason(decision) for decision in plan.decisions))


def bounded(snapshot: Snapshot, most: int) -> int:
    """Reduce a number of trials or cycles to the cluster's size, but not below `FEWEST`."""
    size = sum(len(w.workers) for w in snapshot.workloads) + sum(n.devices for n in snapshot.nodes)
    return max(FEWEST, min(most, EFFORT // max(1, size)))


def _ahead(
    snapshot: Snapshot, plan: Plan, wait: Wait, asked: Workload, may_know: MayKnow
) -> tuple[str, ...]:
    workloads = {workload.name: workload for workload in snapshot.workloads}
    before = [
        workloads[d.workload]
        for d in plan.decisions
        if d.kind == "wait"
        and d.position < wait.position
        and workloads[d.workload].project == asked.project
    ]
    return tuple(w.name for w in before if may_know(w))[:_SHOWN]


def _holder(held: HolderAllocation, may_know: MayKnow) -> Holder:
    is_known = may_know(held.workload)
    return Holder(
        workload=held.workload.name if is_known else "",
        project=held.workload.project,
        user=held.workload.user if is_known else "",
        gpus=MilliGpu(held.total),
        until=held.end.at if held.end else None,
        is_estimated=held.end.is_estimated if held.end else False,
    )
