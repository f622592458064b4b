"""The scheduling cycle: `decide` runs all steps in order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from runai.hub_service.scheduler.explanations.explain import explain_with, explained, forecast_with
from runai.hub_service.scheduler.explanations.plan import plan_of
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.scheduler.model.snapshot import Plan, Policy, Snapshot, Wait, Workload
from runai.hub_service.scheduler.state.cluster_index import ClusterIndex
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of
from runai.hub_service.scheduler.steps.allocate import AllocateStep
from runai.hub_service.scheduler.steps.consolidate import ConsolidateStep
from runai.hub_service.scheduler.steps.quota_choice import (
    choose_parts,
    start_by_other_charge,
    update_fair_shares,
)
from runai.hub_service.scheduler.steps.reclaim import ReclaimStep


def decide(snapshot: Snapshot | ClusterIndex, policy: Policy | None = None) -> Plan:
    """Return the plan for a snapshot: starts, stops, moves and waits.

    Pure, deterministic and total: equal snapshots give equal plans, whatever the order of their
    contents. `policy` replaces the snapshot's own. An index gives the plan of its snapshot, at the
    cost of the changes since the last one.

    >>> from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json
    >>> plan = decide(snapshot_from_json({
    ...     "nodes": [{"name": "dgx-1", "devices": 8}],
    ...     "projects": [{"name": "vision", "quota": 2}],
    ...     "workloads": [{"name": "exp", "project": "vision",
    ...                    "workers": [{"name": "exp-0", "gpus": 0.5}]}]}))
    >>> [(d.kind, d.worker, d.node) for d in plan.decisions]
    [('start', 'exp-0', 'dgx-1')]
    """
    if isinstance(snapshot, ClusterIndex):
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
    state = PlanningState(snapshot, tree_of(snapshot))
    plan = run(state)
    state.clear()
    return explained(decide, snapshot, plan) if snapshot.policy.explain == "full" else plan


def explain(
    snapshot: Snapshot,
    plan: Plan,
    workload: str,
    may_know: Callable[[Workload], bool] = lambda _workload: True,
) -> Wait | None:
    """Explain in detail why a workload waits and when it starts. None if it does not wait.

    `plan` is the result of `decide` for `snapshot`. Only workloads allowed by `may_know` are named.
    """
    return explain_with(decide, snapshot, plan, workload, may_know)


def forecast(
    snapshot: Snapshot,
    plan: Plan,
    only: Collection[str] | None = None,
) -> dict[str, ExpectedStart]:
    """Return when each waiting workload starts if nothing else is submitted.

    `plan` is the result of `decide` for `snapshot`. `only` limits the workloads: faster, with a
    shorter horizon. Tens of cycles are simulated.
    """
    return forecast_with(decide, snapshot, plan, only)


def run(state: PlanningState) -> Plan:
    """Run all steps of one scheduling cycle on a fresh state; return the plan.

    The state then contains the planned placements and `candidates_examined`.
    """
    phases = state.policy.phases

    # 1. Count requests, and divide the cluster (P6, Q4, S).
    choose_parts(state)
    state.set_expected_requests()
    update_fair_shares(state)

    allocation = AllocateStep(state)
    # 2. Keep earlier reservations, and start them where capacity is free now (R7).
    allocation.honour_reservations(start="allocate" in phases)

    # 3. Hold nodes for the oldest blocked gangs, if the policy has backfill (O4).
    if state.policy.backfill and "allocate" in phases:
        allocation.holds.reserve()

    # 4. Start pod sets that fit idle capacity, the most deprived project first (O, Q, P).
    if "allocate" in phases:
        allocation.start_fitting_pod_sets()
        start_by_other_charge(state, allocation)
        if choose_parts(state):
            update_fair_shares(state)

    # 5. Consolidate: move workers to make room, if the policy has this phase (R10).
    reclaim = ReclaimStep(state, allocation)
    consolidation = ConsolidateStep(state, allocation, reclaim)
    may_take = "reclaim" in phases or "preempt" in phases
    if "consolidate" in phases:
        if may_take:
            reclaim.shrink()  # surplus first (R6)
        consolidation.make_room()

    # 6. Reclaim and preempt for entitled pod sets, as few victims as possible (R). Claims
    # within their quota that are still without a place move workers, and take CPU (R10, Q6).
    if may_take:
        reclaim.reclaim()
        if "reclaim" in phases and consolidation.place_within_quota():
            reclaim.reclaim()
        consolidation.settle()

    # 7. Stop gangs that were below their minimum for too long (R11).
    if "stop_stale_gangs" in phases:
        reclaim.stop_stale_gangs()

    # 8. Place the capacity left over by stops: stopped pod sets move first, then others start (R5).
    if reclaim.has_freed_devices:
        allocation.use_freed_capacity(reclaim.stopped_pod_sets, start_waiting="allocate" in phases)

    # 9. Lend otherwise unusable GPUs to elastic workers (E2, E3).
    if "allocate" in phases:
        allocation.grow()
    allocation.holds.release()

    # 10. Build the plan, with a reason for every waiting workload (X).
    return plan_of(state, allocation, reclaim)
