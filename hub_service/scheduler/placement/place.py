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

ShapedWorker = tuple[PlannedWorker, RequestShape]
"""A worker with the shape by which it is placed."""


def place(
    state: PlanningState,
    members: Sequence[PlannedWorker],
    phase: Phase,
    shapes: Sequence[RequestShape] | None = None,
) -> bool:
    """Place all workers or none (P4): `STARTED` in the capacity free now, else free later.

    They are placed by their own shapes, or by `shapes`, one for each. On False the state is
    unchanged.
    """
    capacity = state.now if phase is Phase.STARTED else state.later
    first = members[0]
    is_resizable = first.planned.sizes is not None
    if len(members) == 1 and not is_resizable:  # most calls, so without lists
        shape = first.shape if shapes is None else shapes[0]
        return _place_one(state, (first, shape), phase, capacity)
    if shapes is None:
        shapes = [member.shape for member in members]
    shaped_workers = [*zip(members, shapes, strict=True)]
    place_together = _place_resizable if is_resizable else _place_gang
    return place_together(state, shaped_workers, phase, capacity)


def _place_gang(
    state: PlanningState,
    shaped_workers: Sequence[ShapedWorker],
    phase: Phase,
    capacity: FreeCapacity,
) -> bool:
    mark = state.mark()
    if _place_on_one_node(state, shaped_workers, phase, capacity):
        return True
    first, _ = shaped_workers[0]
    for domain in _domains(state, first):
        if _place_on_few_nodes(state, shaped_workers, phase, capacity, domain):
            return True
        state.roll_back(mark)
    if _place_on_few_nodes(state, shaped_workers, phase, capacity, None):
        return True
    state.roll_back(mark)
    if any(shape.devices > 1 and not shape.is_whole for _, shape in shaped_workers):
        # With fractions on several devices each, the choice of devices decides how many fit.
        for spread in (False, True):
            if _place_one_by_one(state, shaped_workers, phase, capacity, spread=spread):
                return True
            state.roll_back(mark)
    return False


def _place_one(
    state: PlanningState, shaped_worker: ShapedWorker, phase: Phase, capacity: FreeCapacity
) -> bool:
    member, shape = shaped_worker
    place_found = capacity.find(shape)
    if place_found is None:
        return False
    state.set(member, phase, state.book(shape, *place_found))
    return True


def _place_resizable(
    state: PlanningState,
    shaped_workers: Sequence[ShapedWorker],
    phase: Phase,
    capacity: FreeCapacity,
) -> bool:
    """Place parts of an elastic worker on one node, chosen for its whole request (E2)."""
    first, _ = shaped_workers[0]
    planned = first.planned
    base = planned.members[0]
    if first is not base:
        is_running = base.phase in {Phase.RUNNING, Phase.STARTED}
        node = base.booking.node if is_running and base.booking is not None else -1
        return node >= 0 and _place_at(state, shaped_workers[0], phase, capacity, node)
    if len(shaped_workers) > 1:
        return _place_on_one_node(state, shaped_workers, phase, capacity)
    pending_parts = [
        (member, member.shape)
        for member in planned.members[1:]
        if member.phase is Phase.PENDING and not planned.exceeds_request(member)
    ]
    for count in range(len(pending_parts), 0, -1):
        if _place_on_one_node(state, [shaped_workers[0], *pending_parts[:count]], phase, capacity):
            for member, _ in pending_parts[:count]:
                state.set(member, Phase.PENDING, None)  # each starts in its turn (E1)
            return True
    return _place_one(state, shaped_workers[0], phase, capacity)


def _place_one_by_one(
    state: PlanningState,
    shaped_workers: Sequence[ShapedWorker],
    phase: Phase,
    capacity: FreeCapacity,
    *,
    spread: bool,
) -> bool:
    for member, shape in _largest_first(shaped_workers):
        for node in capacity.nodes_by_fullness(0):
            if node in shape.nodes:
                devices = capacity.devices_on(node, shape, spread=spread)
                if devices is not None:
                    state.set(member, phase, state.book(shape, node, devices))
                    break
        else:
            return False
    return True


def _place_on_one_node(
    state: PlanningState,
    shaped_workers: Sequence[ShapedWorker],
    phase: Phase,
    capacity: FreeCapacity,
) -> bool:
    wholes = sum(shape.devices for _, shape in shaped_workers if shape.is_whole)
    counts = _counts(shaped_workers)
    first, *other_shapes = counts
    shared = (
        first.nodes.intersection(*(shape.nodes for shape in other_shapes))
        if other_shapes
        else first.nodes
    )
    if not shared:
        return False
    in_order = _largest_first(shaped_workers)
    roomy = (
        node
        for node in capacity.nodes_by_fullness(wholes)
        if node in shared and all(capacity.slots(node, shape) >= n for shape, n in counts.items())
    )
    for node in capacity.in_order([shape for _, shape in in_order], roomy):
        mark = state.mark()
        if all(
            _place_at(state, shaped_worker, phase, capacity, node) for shaped_worker in in_order
        ):
            return True
        state.roll_back(mark)
    return False


def _place_at(
    state: PlanningState,
    shaped_worker: ShapedWorker,
    phase: Phase,
    capacity: FreeCapacity,
    node: int,
) -> bool:
    member, shape = shaped_worker
    devices = capacity.devices_on(node, shape)
    if devices is None:
        return False
    state.set(member, phase, state.book(shape, node, devices))
    return True


def _counts(shaped_workers: Iterable[ShapedWorker]) -> dict[RequestShape, int]:
    counts: dict[RequestShape, int] = {}
    for _, shape in shaped_workers:
        counts[shape] = counts.get(shape, 0) + 1
    return counts


def _largest_first(shaped_workers: Iterable[ShapedWorker]) -> list[ShapedWorker]:
    def rank(shaped_worker: ShapedWorker) -> tuple[int, int, int, int]:
        member, shape = shaped_worker
        return -shape.devices, -shape.milli, -shape.mib, member.index

    return sorted(shaped_workers, key=rank)


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
    shaped_workers: Sequence[ShapedWorker],
    phase: Phase,
    capacity: FreeCapacity,
    domain: frozenset[int] | None,
) -> bool:
    """Fill the nodes with most slots, then the fullest node that fits the rest."""
    groups: dict[RequestShape, list[ShapedWorker]] = {}
    for shaped_worker in _largest_first(shaped_workers):
        groups.setdefault(shaped_worker[1], []).append(shaped_worker)
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
