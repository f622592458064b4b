"""Waiting workloads with their queue position and reason (O2, O3, X).

Workloads in one lane have the same reason.
"""

from __future__ import annotations

from operator import attrgetter

from runai.hub_service.scheduler.explanations.wait_reasons import Reasons
from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.scheduler.state.equivalence import EquivalenceClass
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.previous_waits import Lines

_RUNS = (Phase.RUNNING, Phase.STARTED, Phase.MOVED)
_WAITS = (Phase.PENDING, Phase.RESERVED)
_place_in_queue = attrgetter("place_in_queue")


def waits_of(state: State, reasons: Reasons) -> list[Wait]:
    """Return the wait decision of every waiting workload: its position and reason."""
    queues: dict[str, list[PlannedWorkload]] = {}
    why: dict[PlannedWorkload, Reason] = {}
    lines: dict[str, Lines] = {}
    others = [*state.reserved, *state.stuck]
    changed = {item.workload.project for item in (*state.changed(), *others)}
    for project, lanes in _lanes_by_project(state).items():
        if project not in changed and not reasons.lost and not reasons.held_up:
            # The common case: the whole lane has one reason.
            lines[project] = tuple(
                [(lane, lane.changes, _why(state, lane, reasons)) for lane in lanes]
            )
            if state.turns is None and state.previous_waits.is_unchanged(project, lines[project]):
                continue
        queue = queues[project] = []
        for lane in lanes:
            found = _of_lane(state, lane, reasons)
            queue.extend(found)
            why.update(found)
    for item in others:
        if item in reasons.lost and _ran_whole(item):
            continue  # its stop decision has the reason
        if item.count(*_RUNS) < item.minimum and item.count(*_WAITS):
            queues.setdefault(item.workload.project, []).append(item)
            why[item] = state.previous_waits.again(reasons.of_wait(item, None))
    turns = state.turns
    for queue in queues.values():
        if turns is None:
            queue.sort(key=_place_in_queue)
        else:
            queue[:] = turns.in_turn(queue)
    return state.previous_waits.store(queues, why, lines)


def _ran_whole(item: PlannedWorkload) -> bool:
    """Return True if its minimum ran before this plan; otherwise it has waited all along."""
    return sum(member.was is Phase.RUNNING for member in item.members) >= item.minimum


def _lanes_by_project(state: State) -> dict[str, list[EquivalenceClass]]:
    """Return the lanes of workloads that wait for their minimum, by project."""
    found: dict[str, list[EquivalenceClass]] = {}
    for account in state.lanes.accounts:
        for lane in state.lanes.of(account):
            first = lane.units[0]
            if not first.is_surplus and not first.is_growth:
                found.setdefault(first.item.workload.project, []).append(lane)
    return found


def _why(state: State, lane: EquivalenceClass, reasons: Reasons) -> Reason:
    first = lane.units[0]
    return state.previous_waits.again(reasons.of_wait(first.item, first))


def _of_lane(
    state: State, lane: EquivalenceClass, reasons: Reasons
) -> dict[PlannedWorkload, Reason]:
    """Return the waiting workloads of a lane with their reasons."""
    units = lane.units
    again, pending, reserved = state.previous_waits.again, Phase.PENDING, Phase.RESERVED
    waiting = [unit.item for unit in units if unit.members[0].standing is pending]
    if len(waiting) == len(units) and not reasons.lost and not reasons.held_up:
        # No unit of this lane changed.
        return dict.fromkeys(waiting, _why(state, lane, reasons))
    found = {}
    for unit in units:
        item, standing = unit.item, unit.members[0].standing
        if standing is pending:
            found[item] = again(reasons.of_wait(item, unit))
        elif standing is reserved:
            found[item] = again(reasons.of_wait(item, None))
    return found
