"""Placement of units: devices for one worker, nodes for a gang (P1 to P6).

All workers of a unit are placed, or none. A gang goes on one node if possible, else in one topology
domain, else on few nodes (P4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import RequestShape


def place(state: State, members: Sequence[PlannedWorker], standing: Phase) -> bool:
    """Place all workers or none (P4): `STARTED` in the capacity free now, else free later.

    On False the state is unchanged.
    """
    room = state.now if standing is Phase.STARTED else state.later
    if members[0].item.sizes is not None:
        return _place_resizable(state, members, standing, room)
    if len(members) == 1:
        return _place_one(state, members[0], standing, room)
    return _place_gang(state, members, standing, room)


def _place_gang(
    state: State, members: Sequence[PlannedWorker], standing: Phase, room: Room
) -> bool:
    mark = state.mark()
    if _place_on_one_node(state, members, standing, room):
        return True
    for domain in _domains(state, members[0]):
        if _place_on_few_nodes(state, members, standing, room, domain):
            return True
        state.roll_back(mark)
    if _place_on_few_nodes(state, members, standing, room, None):
        return True
    state.roll_back(mark)
    if any(m.kind.devices > 1 and not m.kind.is_whole for m in members):
        # With fractions on several devices each, the choice of devices decides how many fit.
        for spread in (False, True):
            if _place_one_by_one(state, members, standing, room, spread=spread):
                return True
            state.roll_back(mark)
    return False


def _place_one(state: State, member: PlannedWorker, standing: Phase, room: Room) -> bool:
    place_found = room.find(member.kind)
    if place_found is None:
        return False
    state.set(member, standing, state.book(member.kind, *place_found))
    return True


def _place_resizable(
    state: State, members: Sequence[PlannedWorker], standing: Phase, room: Room
) -> bool:
    """Place parts of an elastic worker on one node, chosen for its whole request (E2)."""
    first, item = members[0], members[0].item
    base = item.members[0]
    if first is not base:
        at = base.booking if base.standing in {Phase.RUNNING, Phase.STARTED} else None
        return at is not None and at.node >= 0 and _place_at(state, first, standing, room, at.node)
    if len(members) > 1:
        return _place_on_one_node(state, members, standing, room)
    wanted = [
        member
        for member in item.members[1:]
        if member.standing is Phase.PENDING and not item.is_extra(member)
    ]
    for count in range(len(wanted), 0, -1):
        if _place_on_one_node(state, [base, *wanted[:count]], standing, room):
            for member in wanted[:count]:
                state.set(member, Phase.PENDING, None)  # each starts in its turn (E1)
            return True
    return _place_one(state, base, standing, room)


def _place_one_by_one(
    state: State, members: Sequence[PlannedWorker], standing: Phase, room: Room, *, spread: bool
) -> bool:
    for member in _largest_first(members):
        for node in room.nodes_by_fullness(0):
            if node in member.kind.nodes:
                devices = room.devices_on(node, member.kind, spread=spread)
                if devices is not None:
                    state.set(member, standing, state.book(member.kind, node, devices))
                    break
        else:
            return False
    return True


def _place_on_one_node(
    state: State, members: Sequence[PlannedWorker], standing: Phase, room: Room
) -> bool:
    wholes = sum(m.kind.devices for m in members if m.kind.is_whole)
    counts = _counts(members)
    first, *others = counts
    shared = first.nodes.intersection(*(kind.nodes for kind in others)) if others else first.nodes
    if not shared:
        return False
    in_order = _largest_first(members)
    roomy = (
        node
        for node in room.nodes_by_fullness(wholes)
        if node in shared and all(room.slots(node, kind) >= n for kind, n in counts.items())
    )
    for node in room.in_order([member.kind for member in in_order], roomy):
        mark = state.mark()
        if all(_place_at(state, m, standing, room, node) for m in in_order):
            return True
        state.roll_back(mark)
    return False


def _place_at(state: State, member: PlannedWorker, standing: Phase, room: Room, node: int) -> bool:
    devices = room.devices_on(node, member.kind)
    if devices is None:
        return False
    state.set(member, standing, state.book(member.kind, node, devices))
    return True


def _counts(members: Iterable[PlannedWorker]) -> dict[RequestShape, int]:
    counts: dict[RequestShape, int] = {}
    for member in members:
        counts[member.kind] = counts.get(member.kind, 0) + 1
    return counts


def _largest_first(members: Sequence[PlannedWorker]) -> list[PlannedWorker]:
    return sorted(members, key=lambda m: (-m.kind.devices, -m.kind.milli, -m.kind.mib, m.index))


def _domains(state: State, member: PlannedWorker) -> list[frozenset[int]]:
    label = member.item.workload.pack_by
    if not label:
        return []
    domains: dict[str, set[int]] = {}
    for index, node in enumerate(state.nodes):
        value = node.labels.get(label)
        if value is not None:
            domains.setdefault(value, set()).add(index)
    return [frozenset(domains[value]) for value in sorted(domains)]


def _place_on_few_nodes(
    state: State,
    members: Sequence[PlannedWorker],
    standing: Phase,
    room: Room,
    domain: frozenset[int] | None,
) -> bool:
    """Fill the nodes with most slots, then the fullest node that fits the rest."""
    groups: dict[RequestShape, list[PlannedWorker]] = {}
    for member in _largest_first(members):
        groups.setdefault(member.kind, []).append(member)
    for kind, group in groups.items():
        nodes = kind.nodes if domain is None else kind.nodes & domain
        slots = room.roomy(kind, nodes)
        if sum(slots.values()) < len(group):
            return False
        # Most slots first; on ties the node that a single worker would get (P2, P6).
        roomy = sorted(slots, key=lambda node: (-slots[node], room.preference(node, kind)))
        left = group[::-1]
        for node in _fewest(roomy, slots, len(group)):
            while left and _place_at(state, left[-1], standing, room, node):
                left.pop()
        if left:
            return False
    return True


def _fewest(roomy: Sequence[int], slots: Mapping[int, int], wanted: int) -> list[int]:
    """Return as few nodes as fit all workers. The last is the one that gets fullest."""
    chosen: list[int] = []
    for index, node in enumerate(roomy):
        if slots[node] < wanted:
            chosen.append(node)
            wanted -= slots[node]
            continue
        enough = [other for other in roomy[index:] if slots[other] >= wanted]
        least = min(slots[other] for other in enough)
        chosen.append(next(other for other in enough if slots[other] == least))
        break
    return chosen
