"""Choice of how a waiting workload counts: by GPU type (Q4), or by its device's memory (P3).

Parts of a quota with idle GPUs come first, then parts with free quota, and "any other" before a
named type. Every other way is tried too, on idle GPUs and for victims and moves. Without quotas by
GPU type, and memory requests on devices of several sizes, this does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.equivalence import PodSet, pending_units
from runai.hub_service.scheduler.state.fair_shares import set_fair_shares
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge, types_of
from runai.hub_service.scheduler.steps.allocate import AllocateStep


def divide(state: State) -> None:
    """Divide the cluster among the projects, by what they request now (S)."""
    history_weight, by_type = state.policy.history_weight, state.capacity_by_type()
    set_fair_shares(state.tree, state.capacity(), history_weight, by_type)


def choose_parts(state: State) -> bool:
    """Charge each waiting workload with several allowed GPU types to one part.

    Return True if any charge changed. When it is called again after the allocation of idle GPUs,
    only the free quota decides.
    """
    if not state.tree.has_parts:
        return False
    parts_of = {item: _parts_for(state, item) for item in _in_order(state)}
    undecided = [item for item, parts in parts_of.items() if len(parts) > 1]
    has_changed = False
    left: dict[ProjectNode, int] = {}
    for item in undecided:
        for part in parts_of[item]:
            left.setdefault(part, part.quota - part.requested)
    for item in undecided:
        left[item.account] += _wanted(item)
    idle = {part: _idle(state, part) for part in left}
    for item in undecided:
        demand = _least(item)
        chosen = min(parts_of[item], key=lambda part: (idle[part] < demand, left[part] < demand))
        left[chosen] -= _wanted(item)
        idle[chosen] -= demand
        if chosen is not item.account:
            has_changed = True
            state.rebook(item, Charge(chosen))
    return has_changed


def start_elsewhere(state: State, allocation: AllocateStep) -> None:
    """Start workloads on idle GPUs where they count in another way than chosen."""
    for item in _in_order(state, whole=False):
        if any(
            state.now.find(state.kind_on(charge, member)) is not None
            for charge in state.charges_for(item)
            if charge != item.charge
            for member in item.members
            if member.standing is Phase.PENDING
        ):
            _try_other_charges(state, item, allocation.start)


def serve_elsewhere(state: State, attempt: Callable[[PodSet], bool]) -> bool:
    """Try claims where they count in another way than chosen; return True if any got a place.

    Equal claims fail alike, so one of them is tried.
    """
    has_served = False
    failed: set[object] = set()
    for item in _in_order(state):
        alike = _alike(item)
        if alike in failed:
            continue
        if _try_other_charges(state, item, attempt, shares=True):
            has_served = True
        else:
            failed.add(alike)
    return has_served


def _try_other_charges(
    state: State,
    item: PlannedWorkload,
    attempt: Callable[[PodSet], bool],
    *,
    shares: bool = False,
) -> bool:
    """Try the next units of a workload by its other charges, and leave it at the first that works.

    Fair shares follow its request, if they decide (`shares`).
    """
    chosen, tried = item.charge, item
    for charge in state.charges_for(item):
        if charge == chosen:
            continue
        tried = state.rebook(tried, charge)
        if shares:
            divide(state)
        if any(attempt(unit) for unit in pending_units(tried)[:1]):
            return True
    state.rebook(tried, chosen)
    if shares:
        divide(state)
    return False


def _alike(item: PlannedWorkload) -> object:
    members = tuple((member.kind.order, member.worker.gpu_types) for member in item.members)
    rest = item.minimum, item.guaranteed, item.workload.pack_by, item.workload.user
    return item.charge, item.is_fixed, item.rank, rest, members, item.sizes and item.name


def _in_order(state: State, *, whole: bool = True) -> list[PlannedWorkload]:
    """Return undecided workloads without a place; with `whole` False also partly running ones."""
    waiting = [
        item
        for item in state.undecided
        if all(member.standing is Phase.PENDING for member in item.members)
        or not (whole or item.sizes or any(m.standing is not m.was for m in item.members))
    ]
    return sorted(waiting, key=lambda item: item.place_in_queue)


def _parts_for(state: State, item: PlannedWorkload) -> list[ProjectNode]:
    return list(dict.fromkeys(charge.account for charge in state.charges_for(item)))


def _least(item: PlannedWorkload) -> int:
    return sum(member.kind.quota for member in item.members[: item.minimum])


def _wanted(item: PlannedWorkload) -> int:
    return item.request(sum(member.kind.quota for member in item.members))


def _idle(state: State, part: ProjectNode) -> int:
    room = state.now
    return WHOLE_GPU * sum(
        room.idle[index]
        for index, node in enumerate(state.nodes)
        if node.schedulable and types_of(part, (node.gpu_type,))
    )
