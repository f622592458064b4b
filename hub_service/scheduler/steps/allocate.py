"""Allocation of free capacity, and of earlier reservations (Q, P, R7).

A unit must pass the caps; then it starts on devices that are free now, or reserves devices that
will be. The reason for each blocked lane is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runai.hub_service.scheduler.model.elastic_sizes import gain, repays
from runai.hub_service.scheduler.model.snapshot import WorkerState
from runai.hub_service.scheduler.placement.backfill import Hold, Holds
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import (
    Block,
    cap_in_the_way,
    cap_on,
    leaves_what_is_never_lent,
    still_over,
)
from runai.hub_service.scheduler.state.equivalence import (
    EquivalenceClass,
    PodSet,
    pending_units,
    surplus_units,
)
from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import Booking

_NO_NODE = Block("no_such_node", "P5")
_NO_ROOM = Block("no_room", "P1")
HELD = Block("held_for", "Q2")
_BLOCKED_BY_HOLD = Block("held_for", "O4")


class AllocateStep:
    """Allocations of one cycle, in the order in which they were made."""

    def __init__(self, state: State) -> None:
        """Start without allocations."""
        self._state = state
        self._infeasible_now: set[tuple[object, ...]] = set()
        self._infeasible_later: set[tuple[object, ...]] = set()
        self.holds = Holds(state)
        """Devices held for the oldest blocked gangs (O4)."""
        self.held_up: dict[PlannedWorkload, Hold] = {}
        """Workloads that would fit but for a hold."""
        self.blocks: dict[EquivalenceClass, Block] = {}
        """Reason why no more units of a lane could be placed."""
        self.placed: list[PlannedWorker] = []
        """Workers in the order in which they got their devices."""

    # ---- R7

    def honour_reservations(self, *, start: bool) -> None:
        """Keep the reservations of the previous plan that are still valid. Start what is free now.

        A reservation ends if it breaks a cap, if its devices are gone for longer than a moment, or
        if its gang has lost other workers since and is below its minimum (P4).
        """
        for item in sorted(self._state.reserved, key=lambda item: (not item.is_fixed, item.age)):
            reserved = [m for m in item.members if m.worker.state is WorkerState.RESERVED]
            if not item.is_known or not self._restore(item, reserved):
                continue
            if start and item.has_minimum(len(reserved), now=True):
                self._start_in_place(reserved)

    def _restore(self, item: PlannedWorkload, reserved: Sequence[PlannedWorker]) -> bool:
        # Workers still stopping count: they queue again once they are gone, and complete the gang.
        if not item.has_minimum(len(reserved) + item.count(Phase.GOING)):
            return False
        mark = self._state.mark()
        for member in reserved:
            booking = member.origin
            if (
                booking is None
                or not is_place_free(self._state.later, member, booking, returns=True)
                or cap_on(item, booking.quota, is_guaranteed=bool(item.guaranteed))
            ):
                self._state.roll_back(mark)
                return False
            self._state.set(member, Phase.RESERVED, booking)
        return True

    def _start_in_place(self, reserved: Sequence[PlannedWorker]) -> None:
        mark = self._state.mark()
        for member in reserved:
            self._state.set(member, Phase.PENDING, None)
        for member in reserved:
            booking = member.origin
            assert booking is not None, "kept reservations have a booking"
            if not is_place_free(self._state.now, member, booking):
                self._state.roll_back(mark)
                return
            self._state.set(member, Phase.STARTED, booking)
        if _request_gpus(reserved) and still_over(reserved[0].item):
            self._state.roll_back(mark)
        else:
            self.placed += reserved

    # ---- O, Q, P

    def start_what_fits(self) -> None:
        """Try the waiting units, the most deprived project's next unit first (O1)."""
        units = self.unkept_units()
        units += [unit for item in self._state.reserved for unit in _reserved_unit(item)]
        order = FairOrder(self._state, units)
        while (unit := order.pop()) is not None:
            if self._try(unit):
                order.set_aside()

    def start(self, unit: PodSet) -> bool:
        """Try one unit; return True if it starts now."""
        self._try(unit)
        return unit.members[0].standing is Phase.STARTED

    def unkept_units(self) -> list[PodSet]:
        """Return the units that workloads with reservations want beyond the kept reservations."""
        return [unit for item in self._state.reserved for unit in pending_units(item)]

    def place_leftovers(self, victims: Iterable[PodSet], *, others: bool) -> None:
        """Place remaining capacity: stopped units move to it (R5), waiting units start on it."""
        units = list(victims)
        if others:
            units += self.unkept_units()
        self._infeasible_later.clear()
        order = FairOrder(self._state, units, waiting=others)
        while (unit := order.pop()) is not None:
            is_going = unit.members[0].standing is Phase.GOING
            if self._try_to_move(unit) if is_going else self._try(unit):
                order.set_aside()

    def _try(self, unit: PodSet) -> bool:
        """Place a unit if caps and capacity allow. Return True to skip the rest of its lane."""
        item, members = unit.item, unit.members
        least = max(item.minimum, item.guaranteed)
        if unit.is_surplus and item.count(Phase.RUNNING, Phase.STARTED) < least:
            return False
        if unit.is_surplus and not self._may_grow(item, unit):
            return True
        if unit.falls_short(now=members[0].standing is Phase.RESERVED):
            return False
        block = cap_in_the_way(unit)
        if block is None:
            block = self._place(unit)
        if block is None:
            self.placed += members
            return False
        if block is _BLOCKED_BY_HOLD:
            return False  # other units with this request may end before the hold starts
        if members[0].standing is not Phase.RESERVED and not unit.is_surplus and not unit.is_growth:
            self.blocks[self._state.lanes.lane_of(unit)] = block
        return True

    # ---- E2, E3

    def grow(self) -> None:
        """Place surplus of elastic workers on idle GPUs; undo a growth that never pays off."""
        state = self._state
        units: list[PodSet] = []
        for item in state.resizable:
            extra = [m for m in item.members if m.standing is Phase.PENDING and item.is_extra(m)]
            if item.is_known:
                placed = len(item.members) - item.count(Phase.PENDING, Phase.GOING)
                units += surplus_units(item, extra, placed)
        order = FairOrder(state, units, waiting=False)
        while (unit := order.pop()) is not None:
            if self._try(unit):
                order.set_aside()
        for item in state.resizable:
            grown = [m for m in item.members[1:] if m.standing is Phase.STARTED]
            if grown and self._resizes(item) and not self._repays(item, 0):
                for member in grown:
                    state.set(member, Phase.PENDING, None)

    def _may_grow(self, item: PlannedWorkload, unit: PodSet) -> bool:
        """Return True if one more GPU is worth its cost to an elastic workload (E3)."""
        if item.sizes is None:  # the gain depends on the number of running workers, not on which
            running = item.count(Phase.RUNNING, Phase.STARTED)
            return gain(item.workload, None, running) > 0
        if gain(item.workload, item.sizes, unit.members[0].index) <= 0:
            return False
        if not self._resizes(item):
            return True
        booking = item.members[0].booking
        if item.count(Phase.GOING) or booking is None or booking.node < 0:
            return False
        idle = self._state.now.idle[booking.node]
        return self._repays(item, min(idle, item.count(Phase.PENDING)))

    def _resizes(self, item: PlannedWorkload) -> bool:
        """Return True if it runs already, so that growing means a restart."""
        return item.members[0].standing is Phase.RUNNING

    def _repays(self, item: PlannedWorkload, more: int) -> bool:
        sizes, started = item.sizes, item.members[0].worker.started
        assert sizes is not None, "only elastic workers are resized"
        before = sizes.least + sum(m.standing is Phase.RUNNING for m in item.members[1:])
        after = before + item.count(Phase.STARTED) + more
        now = self._state.time
        return after > before and repays(item.workload, before, after, started=started, now=now)

    def _place(self, unit: PodSet) -> Block | None:
        if any(not member.kind.nodes for member in unit.members):
            return _NO_NODE
        if not self.holds:
            return self._place_now_or_later(unit, unit.signature)
        with self.holds.open_to(unit) as may_pass:
            block = self._place_now_or_later(unit, (unit.signature, may_pass))
        if block is _NO_ROOM and unit.members[0].standing is Phase.PENDING:
            hold = self.holds.in_the_way(unit)
            if hold is not None and not unit.is_surplus:
                self.held_up[unit.item] = hold
            return _NO_ROOM if hold is None else _BLOCKED_BY_HOLD
        return block

    def _place_now_or_later(self, unit: PodSet, signature: tuple[object, ...]) -> Block | None:
        state = self._state
        mark = state.mark()
        was_reserved = unit.members[0].standing is Phase.RESERVED
        held = False
        if not unit.falls_short(now=True) and signature not in self._infeasible_now:
            for member in unit.members:
                if was_reserved:
                    state.set(member, Phase.PENDING, None)
            if not self._start_on_preferred(unit) and not place(state, unit.members, Phase.STARTED):
                self._infeasible_now.add(signature)
            elif _request_gpus(unit.members) and still_over(unit.item):
                pass  # Q3: it may reserve the place until the stopping workers have ended
            elif leaves_what_is_never_lent(state, unit.item):
                return None
            else:
                held = True
            state.roll_back(mark)
        if was_reserved:
            return _NO_ROOM  # it keeps its reservation
        # E1: surplus only runs on idle GPUs, so nothing is reserved for it.
        if not unit.is_surplus and not held and signature not in self._infeasible_later:
            if not place(state, unit.members, Phase.RESERVED):
                self._infeasible_later.add(signature)
            elif leaves_what_is_never_lent(state, unit.item):
                return None
            else:
                held = True
            state.roll_back(mark)
        return HELD if held else _NO_ROOM

    def _start_on_preferred(self, unit: PodSet) -> bool:
        """Start a unit on the first GPU type of its preference where it fits (P5)."""
        members = unit.members
        wide = [member.kind for member in members]
        for kinds in self._state.kinds_by_preference(members):
            for member, kind in zip(members, kinds, strict=True):
                member.kind = kind
            is_placed = place(self._state, members, Phase.STARTED)
            for member, kind in zip(members, wide, strict=True):
                member.kind = kind
            if is_placed:
                return True
        return False

    def _try_to_move(self, unit: PodSet) -> bool:
        """Place a stopped unit elsewhere if possible. Return True to skip the rest of its lane."""
        item = unit.item
        stays = (Phase.RUNNING, Phase.STARTED, Phase.MOVED)
        if unit.is_surplus and item.count(*stays) < item.minimum:
            return False
        if unit.falls_short():
            return False
        if cap_in_the_way(unit):
            return True
        signature = unit.signature
        if signature in self._infeasible_later:
            return True
        mark = self._state.mark()
        if not place(self._state, unit.members, Phase.MOVED):
            self._infeasible_later.add(signature)
            return True
        if leaves_what_is_never_lent(self._state, item):
            self.placed += unit.members
        else:
            self._state.roll_back(mark)
        return False


def _reserved_unit(item: PlannedWorkload) -> list[PodSet]:
    """Return a unit of the workers that wait for reservations: they may start elsewhere now."""
    reserved = tuple(m for m in item.members if m.standing is Phase.RESERVED)
    return [PodSet(item, reserved, is_surplus=False)] if reserved else []


def _request_gpus(members: Iterable[PlannedWorker]) -> bool:
    return any(member.kind.quota for member in members)


def is_place_free(
    room: Room, member: PlannedWorker, booking: Booking, *, returns: bool = False
) -> bool:
    """Return True if a worker's earlier place is free, and still meets its request.

    With `returns`, also if it will be once its broken devices return.
    """
    kind, node = member.kind, booking.node
    return (
        (node in kind.nodes or (returns and node in kind.returning))
        and len(booking.devices) == kind.devices
        and room.has_base(node, kind)
        and all(
            room.fits_device(node, device, kind)
            or (returns and room.fits_returned(node, device, kind))
            for device in booking.devices
        )
    )
