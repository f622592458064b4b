"""Placement of pod sets: devices for one worker, nodes for a gang (P1 to P6).

All of its workers are placed, or none. A gang goes on one node if possible, else in one topology
domain, else on few nodes (P4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import RequestShape


def place(state: PlanningState, members: Sequence[PlannedWorker], phase: Phase) -> bool:
    """Place all workers or none (P4): `STARTED` in the capacity free now, else free later.

    On False the state is unchanged.
    """
    capacity = state.now if phase is Phase.STARTED else state.later
    if members[0].planned.sizes is not None:
        return _place_resizable(state, members, phase, capacity)
    if len(members) == 1:
        return _place_one(state, members[0], phase, capacity)
    return _place_gang(state, members, phase, capacity)


def _place_gang(
    state: PlanningState, members: Sequence[PlannedWorker], phase: Phase, capacity: FreeCapacity
) -> bool:
    mark = state.mark()
    if _place_on_one_node(state, members, phase, capacity):
        return True
    for domain in _domains(state, members[0]):
        if _place_on_few_nodes(state, members, phase, capacity, domain):
            return True
        state.roll_back(mark)
    if _place_on_few_nodes(state, members, phase, capacity, None):
        return True
    state.roll_back(mark)
    if any(m.shape.devices > 1 and not m.shape.is_whole for m in members):
        # With fractions on several devices each, the choice of devices decides how many fit.
        for spread in (False, True):
            if _place_one_by_one(state, members, phase, capacity, spread=spread):
                return True
            state.roll_back(mark)
    return False


def _place_one(
    state: PlanningState, member: PlannedWorker, phase: Phase, capacity: FreeCapacity
) -> bool:
    place_found = capacity.find(member.shape)
    if place_found is None:
        return False
    state.set(member, phase, state.book(member.shape, *place_found))
    return True


def _place_resizable(
    state: PlanningState, members: Sequence[PlannedWorker], phase: Phase, capacity: FreeCapacity
) -> bool:
    """Place parts of an elastic worker on one node, chosen for its whole request (E2)."""
    first, planned = members[0], members[0].planned
    base = planned.members[0]
    if first is not base:
        at = base.booking if base.phase in {Phase.RUNNING, Phase.STARTED} else None
        return at is not None and at.node >= 0 and _place_at(state, first, phase, capacity, at.node)
    if len(members) > 1:
        return _place_on_one_node(state, members, phase, capacity)
    pending_parts = [
        member
        for member in planned.members[1:]
        if member.phase is Phase.PENDING and not planned.exceeds_request(member)
    ]
    for count in range(len(pending_parts), 0, -1):
        if _place_on_one_node(state, [base, *pending_parts[:count]], phase, capacity):
            for member in pending_parts[:count]:
                state.set(member, Phase.PENDING, None)  # each starts in its turn (E1)
            return True
    return _place_one(state, base, phase, capacity)


def _place_one_by_one(
    state: PlanningState,
    members: Sequence[PlannedWorker],
    phase: Phase,
    capacity: FreeCapacity,
    *,
    spread: bool,
) -> bool:
    for member in _largest_first(members):
        for node in capacity.nodes_by_fullness(0):
            if node in member.shape.nodes:
                devices = capacity.devices_on(node, member.shape, spread=spread)
                if devices is not None:
                    state.set(member, phase, state.book(member.shape, node, devices))
                    break
        else:
            return False
    return True


def _place_on_one_node(
    state: PlanningState, members: Sequence[PlannedWorker], phase: Phase, capacity: FreeCapacity
) -> bool:
    wholes = sum(m.shape.devices for m in members if m.shape.is_whole)
    counts = _counts(members)
    first, *other_shapes = counts
    shared = (
        first.nodes.intersection(*(shape.nodes for shape in other_shapes))
        if other_shapes
        else first.nodes
    )
    if not shared:
        return False
    in_order = _largest_first(members)
    roomy = (
        node
        for node in capacity.nodes_by_fullness(wholes)
        if node in shared and all(capacity.slots(node, shape) >= n for shape, n in counts.items())
    )
    for node in capacity.in_order([member.shape for member in in_order], roomy):
        mark = state.mark()
        if all(_place_at(state, m, phase, capacity, node) for m in in_order):
            return True
        state.roll_back(mark)
    return False


def _place_at(
    state: PlanningState, member: PlannedWorker, phase: Phase, capacity: FreeCapacity, node: int
) -> bool:
    devices = capacity.devices_on(node, member.shape)
    if devices is None:
        return False
    state.set(member, phase, state.book(member.shape, node, devices))
    return True


def _counts(members: Iterable[PlannedWorker]) -> dict[RequestShape, int]:
    counts: dict[RequestShape, int] = {}
    for member in members:
        counts[member.shape] = counts.get(member.shape, 0) + 1
    return counts


def _largest_first(members: Sequence[PlannedWorker]) -> list[PlannedWorker]:
    return sorted(members, key=lambda m: (-m.shape.devices, -m.shape.milli, -m.shape.mib, m.index))


def _domains(state: PlanningState, member: PlannedWorker) -> list[frozenset[int]]:
    label = member.planned.workload.pack_by
    if not label:
        return []
    domains: dict[str, set[int]] = {}
    for index, node in enumerate(state.nodes):
        value = node.labels.get(label)
        if value is not None:
            domains.setdefault(value, set()).add(index)
    return [frozenset(domains[value]) for value in sorted(domains)]


def _place_on_few_nodes(
    state: PlanningState,
    members: Sequence[PlannedWorker],
    phase: Phase,
    capacity: FreeCapacity,
    domain: frozenset[int] | None,
) -> bool:
    """Fill the nodes with most slots, then the fullest node that fits the rest."""
    groups: dict[RequestShape, list[PlannedWorker]] = {}
    for member in _largest_first(members):
        groups.setdefault(member.shape, []).append(member)
    for shape, group in groups.items():
        nodes = shape.nodes if domain is None else shape.nodes & domain
        slots = capacity.slots_by_node(shape, nodes)
        if sum(slots.values()) < len(group):
            return False
        # Most slots first; on ties the node that a single worker would get (P2, P6).
        roomy = sorted(slots, key=lambda node: (-slots[node], capacity.preference(node, shape)))
        remaining = group[::-1]
        for node in _fewest(roomy, slots, len(group)):
            while remaining and _place_at(state, remaining[-1], phase, capacity, node):
                remaining.pop()
        if remaining:
            return False
    return True


def _fewest(roomy: Sequence[int], slots: Mapping[int, int], needed: int) -> list[int]:
    """Return as few nodes as fit all workers. The last is the one that gets fullest."""
    chosen: list[int] = []
    for index, node in enumerate(roomy):
        if slots[node] < needed:
            chosen.append(node)
            needed -= slots[node]
            continue
        enough = [other for other in roomy[index:] if slots[other] >= needed]
        min_slots = min(slots[other] for other in enough)
        chosen.append(next(other for other in enough if slots[other] == min_slots))
        break
    return chosen
