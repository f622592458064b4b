"""One run of `decide`: the rules in the order in which they act.

Knows the order of the steps and what a plan consists of. Leaves every rule to its file. Called by
the controller, the simulator, `runai schedule` and the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from runai.hub_service.scheduler.explanations.explain import explain_with, explained, forecast_with
from runai.hub_service.scheduler.explanations.plan import plan_of
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.scheduler.model.rests import Rest, at_once
from runai.hub_service.scheduler.model.snapshot import Plan, Policy, Snapshot, Wait, Workload
from runai.hub_service.scheduler.state.cluster_index import Index
from runai.hub_service.scheduler.state.fair_shares import set_fair_shares
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import tree_of
from runai.hub_service.scheduler.steps.allocate import Allocation
from runai.hub_service.scheduler.steps.consolidate import Consolidation
from runai.hub_service.scheduler.steps.quota_choice import choose_parts, try_other_parts
from runai.hub_service.scheduler.steps.reclaim import Reclaim


def decide(snapshot: Snapshot | Index, policy: Policy | None = None) -> Plan:
    """Decide who starts, stops and waits, from the snapshot alone.

    Pure, deterministic and total: equal snapshots give equal plans, whatever the order of what
    is in them. `policy` replaces the snapshot's own. An index gives the plan of its snapshot, at
    the cost of what changed.

    >>> from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json
    >>> plan = decide(snapshot_from_json({
    ...     "nodes": [{"name": "dgx-1", "devices": 8}],
    ...     "projects": [{"name": "vision", "quota": 2}],
    ...     "workloads": [{"name": "exp", "project": "vision",
    ...                    "workers": [{"name": "exp-0", "gpus": 0.5}]}]}))
    >>> [(d.kind, d.worker, d.node) for d in plan.decisions]
    [('start', 'exp-0', 'dgx-1')]
    """
    if isinstance(snapshot, Index):
        if policy is None:
            state = snapshot.state()
            plan = run(state)
            state.roll_back(0)
            if state.policy.explain != "full":
                return plan
            return explained(decide, snapshot.snapshot(), plan)
        snapshot = snapshot.snapshot()
    if policy is not None:
        snapshot = replace(snapshot, policy=policy)
    state = State(snapshot, tree_of(snapshot))
    plan = run(state)
    state.let_go()
    return explained(decide, snapshot, plan) if snapshot.policy.explain == "full" else plan


def explain(
    snapshot: Snapshot,
    plan: Plan,
    workload: str,
    may_know: Callable[[Workload], bool] = lambda _workload: True,
) -> Wait | None:
    """Explain at length why a workload waits and when it starts; None if it does not wait.

    `plan` is what `decide` made of `snapshot`. Names no workload that the reader may not know of.
    """
    return explain_with(decide, snapshot, plan, workload, may_know)


def forecast(
    snapshot: Snapshot,
    plan: Plan,
    only: Collection[str] | None = None,
    *,
    rest: Rest = at_once,
) -> dict[str, ExpectedStart]:
    """Tell when each workload that waits starts if nothing else is submitted.

    `plan` is what `decide` made of `snapshot`. Of `only` these, it is told sooner and less far.
    Tens of cycles are played: `rest` is told between pieces of the work, and may take its time.
    """
    return forecast_with(decide, snapshot, plan, only, rest)


def run(state: State) -> Plan:
    """Take the steps of one cycle on a fresh state; afterwards it can tell what they cost."""
    phases = state.policy.phases

    # 1. See what is asked for, and divide the cluster (P6, Q4, S).
    choose_parts(state)
    state.expect_its_like()
    _divide(state)

    allocation = Allocation(state)
    # 2. Keep what earlier plans reserved, and start it where it is free now (R7).
    allocation.honour_reservations(start="allocate" in phases)

    # 3. Hold nodes for the oldest blocked gangs, where that is wanted (O4).
    if state.policy.backfill and "allocate" in phases:
        allocation.holds.hold()

    # 4. Start what fits into what is idle, the most deprived project first (O, Q, P).
    if "allocate" in phases:
        allocation.start_what_fits()
        try_other_parts(state, allocation)
        if choose_parts(state):
            _divide(state)

    # 5. Make room by moving those who can go on elsewhere, where that is wanted (R10).
    reclaim = Reclaim(state, allocation)
    consolidation = Consolidation(state, allocation, reclaim)
    may_take = "reclaim" in phases or "preempt" in phases
    if "consolidate" in phases:
        if may_take:
            reclaim.shrink()  # which comes first (R6)
        consolidation.make_room()

    # 6. Take back for those that are owed, as little as will do (R).
    if may_take:
        reclaim.take_back()
        consolidation.settle()

    # 7. Stop gangs that have been broken for too long (R11).
    if "stop_stale_gangs" in phases:
        reclaim.stop_stale_gangs()

    # 8. Give what stopping left over to the stopped, and to those who still wait (R5).
    if reclaim.took_something:
        allocation.place_leftovers(reclaim.stopped, others="allocate" in phases)

    # 9. Lend elastic workers what nobody else can use (E2, E3).
    if "allocate" in phases:
        allocation.grow()
    allocation.holds.let_go()

    # 10. Say it, with the reason for everybody who waits (X).
    return plan_of(state, allocation, reclaim)


def _divide(state: State) -> None:
    history_weight, by_type = state.policy.history_weight, state.capacity_by_type()
    set_fair_shares(state.tree, state.capacity(), history_weight, by_type)
