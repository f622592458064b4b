"""Who waits in which place of their project's queue, and why (O2, O3, X).

Knows the order of a queue and that those of a lane wait for the same; the words are `reasons`'.
Called by `outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from runai.hub_service.scheduler.items import Item, Standing
from runai.hub_service.scheduler.lanes import Unit
from runai.hub_service.scheduler.model import Reason, Wait
from runai.hub_service.scheduler.reasons import Reasons
from runai.hub_service.scheduler.state import State

_RUNS = (Standing.RUNNING, Standing.STARTED, Standing.MOVED)
_WAITS = (Standing.PENDING, Standing.RESERVED)
_place_in_queue = attrgetter("place_in_queue")


def waits_of(state: State, reasons: Reasons) -> list[Wait]:
    """Tell everybody who waits in which place of the queue, and why."""
    queues: dict[str, list[Item]] = {}
    why: dict[Item, Reason] = {}
    for account in state.lanes.accounts:
        for lane in state.lanes.of(account):
            first = lane.units[0]
            if not first.is_surplus:
                found = _of_lane(state, lane.units, reasons)
                queues.setdefault(first.item.workload.project, []).extend(found)
                why.update(found)
    for item in [*state.reserved, *state.stuck]:
        if item not in reasons.lost and item.count(*_RUNS) < item.minimum and item.count(*_WAITS):
            queues.setdefault(item.workload.project, []).append(item)
            why[item] = state.told.again(reasons.of_wait(item, None))
    turns = state.turns
    for queue in queues.values():
        if turns is None:
            queue.sort(key=_place_in_queue)
        else:
            queue[:] = turns.in_turn(queue)
    return state.told.tell(queues, why)


def _of_lane(state: State, units: Sequence[Unit], reasons: Reasons) -> dict[Item, Reason]:
    """Give those of a lane who wait, and why."""
    again, pending, reserved = state.told.again, Standing.PENDING, Standing.RESERVED
    waiting = [unit.item for unit in units if unit.members[0].standing is pending]
    if len(waiting) == len(units) and not reasons.lost and not reasons.held_up:
        # As in nearly every cycle: nothing has happened here, and all wait for the same.
        return dict.fromkeys(waiting, again(reasons.of_wait(waiting[0], units[0])))
    found = {}
    for unit in units:
        item, standing = unit.item, unit.members[0].standing
        if item in reasons.lost:
            continue
        if standing is pending:
            found[item] = again(reasons.of_wait(item, unit))
        elif standing is reserved:
            found[item] = again(reasons.of_wait(item, None))
    return found
