"""Choice of the per-GPU-type quota that a waiting workload is charged to (Q4).

Parts with idle GPUs come first, then parts with free quota, and "any other" before a named type.
Without quotas by GPU type this does nothing.
"""

from __future__ import annotations

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.equivalence import pending_units
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import types_of
from runai.hub_service.scheduler.steps.allocate import AllocateStep


def choose_parts(state: State) -> bool:
    """Charge each waiting workload with several allowed GPU types to one part.

    Return True if any charge changed. When it is called again after the allocation of idle GPUs,
    only the free quota decides.
    """
    undecided = _in_order(state)
    has_changed = False
    left: dict[ProjectNode, int] = {}
    for item in undecided:
        for part in state.parts_for(item):
            left.setdefault(part, part.quota - part.requested)
    for item in undecided:
        left[item.account] += _wanted(item)
    idle = {part: _idle(state, part) for part in left}
    for item in undecided:
        demand = _least(item)
        chosen = min(
            state.parts_for(item), key=lambda part: (idle[part] < demand, left[part] < demand)
        )
        left[chosen] -= _wanted(item)
        idle[chosen] -= demand
        if chosen is not item.account:
            has_changed = True
            state.rebook(item, chosen)
    return has_changed


def try_other_parts(state: State, allocation: AllocateStep) -> None:
    """Start workloads on another part if the chosen one has no place for them."""
    for waiting in _in_order(state):
        item, chosen = waiting, waiting.account
        for part in state.parts_for(item):
            if part is chosen or not _has_place(state, item, part):
                continue
            item = state.rebook(item, part)
            if any(allocation.start(unit) for unit in pending_units(item)[:1]):
                break
            item = state.rebook(item, chosen)


def _in_order(state: State) -> list[PlannedWorkload]:
    waiting = [
        item
        for item in state.undecided
        if all(member.standing is Phase.PENDING for member in item.members)
    ]
    return sorted(waiting, key=lambda item: item.place_in_queue)


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


def _has_place(state: State, item: PlannedWorkload, part: ProjectNode) -> bool:
    return state.now.find(state.kind_on(part, item.members[0])) is not None
