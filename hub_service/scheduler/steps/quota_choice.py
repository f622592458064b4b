"""Choice of how a waiting workload counts: by GPU type (Q4), or by its device's memory (P3).

Parts of a quota with idle GPUs come first, then parts with free quota, and "any other" before a
named type. Every other charge is tried too, on idle GPUs, for victims and moves. Without quotas by
GPU type, and memory requests on devices of several sizes, this does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.equivalence_classes import PodSet, pending_pod_sets
from runai.hub_service.scheduler.state.fair_shares import set_fair_shares
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge, types_of
from runai.hub_service.scheduler.steps.allocate import AllocateStep


def update_fair_shares(state: PlanningState) -> None:
    """Divide the cluster among the projects, by what they request now (S)."""
    history_weight, by_type = state.policy.history_weight, state.capacity_by_type()
    set_fair_shares(state.tree, state.capacity(), history_weight, by_type)


def choose_parts(state: PlanningState) -> bool:
    """Charge each waiting workload with several allowed GPU types to one part.

    Return True if any charge changed. When it is called again after the allocation of idle GPUs,
    only the free quota decides.
    """
    if not state.tree.has_parts:
        return False
    parts_of = {planned: _parts_for(state, planned) for planned in _undecided(state)}
    undecided = [planned for planned, parts in parts_of.items() if len(parts) > 1]
    has_changed = False
    remaining_quota: dict[ProjectNode, int] = {}
    for planned in undecided:
        for part in parts_of[planned]:
            remaining_quota.setdefault(part, part.quota - part.requested)
    for planned in undecided:
        remaining_quota[planned.project] += _total_request(planned)
    idle = {part: _idle_milli(state, part) for part in remaining_quota}
    for planned in undecided:
        demand = _minimum_request(planned)
        chosen = min(
            parts_of[planned], key=lambda p: (idle[p] < demand, remaining_quota[p] < demand)
        )
        remaining_quota[chosen] -= _total_request(planned)
        idle[chosen] -= demand
        if chosen is not planned.project:
            has_changed = True
            state.rebook(planned, Charge(chosen))
    return has_changed


def start_by_other_charge(state: PlanningState, allocation: AllocateStep) -> None:
    """Start workloads on idle GPUs by another charge than chosen."""
    for planned in _undecided(state, partly_running=True):
        if any(
            state.now.find(state.shape_for(charge, member)) is not None
            for charge in state.charges_for(planned)
            if charge != planned.charge
            for member in planned.members
            if member.phase is Phase.PENDING
        ):
            _try_other_charges(state, planned, allocation.start)


def serve_by_other_charge(state: PlanningState, attempt: Callable[[PodSet], bool]) -> bool:
    """Try claims by another charge than chosen; return True if any got a place.

    Equal claims fail alike, so one of them is tried.
    """
    has_served = False
    failed_claims: set[object] = set()
    for planned in _undecided(state):
        claim_key = _claim_key(planned)
        if claim_key in failed_claims:
            continue
        if _try_other_charges(state, planned, attempt, updates_fair_shares=True):
            has_served = True
        else:
            failed_claims.add(claim_key)
    return has_served


def _try_other_charges(
    state: PlanningState,
    planned: PlannedWorkload,
    attempt: Callable[[PodSet], bool],
    *,
    updates_fair_shares: bool = False,
) -> bool:
    """Try a workload's next pod set by its other charges; leave it at the first that works.

    `updates_fair_shares` divides the cluster again after each change. Return True on success.
    """
    chosen, rebooked = planned.charge, planned
    for charge in state.charges_for(planned):
        if charge == chosen:
            continue
        rebooked = state.rebook(rebooked, charge)
        if updates_fair_shares:
            update_fair_shares(state)
        if any(attempt(pod_set) for pod_set in pending_pod_sets(rebooked)[:1]):
            return True
    state.rebook(rebooked, chosen)
    if updates_fair_shares:
        update_fair_shares(state)
    return False


def _claim_key(planned: PlannedWorkload) -> object:
    """Return what equal claims have in common."""
    members = tuple((member.shape.order, member.worker.gpu_types) for member in planned.members)
    limits = planned.minimum, planned.guaranteed, planned.workload.pack_by, planned.workload.user
    name = planned.sizes and planned.name
    return planned.charge, planned.is_fixed, planned.rank, limits, members, name


def _undecided(state: PlanningState, *, partly_running: bool = False) -> list[PlannedWorkload]:
    """Return undecided workloads without a place in order; on demand also partly running ones."""
    waiting = [
        p
        for p in state.undecided
        if all(m.phase is Phase.PENDING for m in p.members)
        or (partly_running and not p.sizes and all(m.phase is m.snapshot_phase for m in p.members))
    ]
    return sorted(waiting, key=lambda planned: planned.place_in_queue)


def _parts_for(state: PlanningState, planned: PlannedWorkload) -> list[ProjectNode]:
    return list(dict.fromkeys(charge.project for charge in state.charges_for(planned)))


def _minimum_request(planned: PlannedWorkload) -> int:
    return sum(member.shape.quota for member in planned.members[: planned.minimum])


def _total_request(planned: PlannedWorkload) -> int:
    return planned.cap_to_request(sum(member.shape.quota for member in planned.members))


def _idle_milli(state: PlanningState, project: ProjectNode) -> int:
    capacity = state.now
    return WHOLE_GPU * sum(
        capacity.idle[index]
        for index, node in enumerate(state.nodes)
        if node.schedulable and types_of(project, (node.gpu_type,))
    )
