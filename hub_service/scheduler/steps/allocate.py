"""Allocation of free capacity, and of earlier reservations (Q, P, R7).

A pod set must pass the caps; then it starts on devices that are free now, or reserves devices that
will be. The reason for each blocked equivalence class is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runai.hub_service.scheduler.model.elastic_sizes import gain, repays
from runai.hub_service.scheduler.model.snapshot import WorkerState
from runai.hub_service.scheduler.placement.backfill import BackfillHold, BackfillHolds
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.queue_order import QueueOrder
from runai.hub_service.scheduler.placement.quota_check import (
    BlockReason,
    cap_on,
    first_cap_exceeded,
    projects_over_limit,
    respects_never_lent,
)
from runai.hub_service.scheduler.state.equivalence_classes import (
    EquivalenceClass,
    PodSet,
    pending_pod_sets,
    surplus_pod_sets,
)
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import Booking

_NO_NODE = BlockReason("no_such_node", "P5")
_NO_ROOM = BlockReason("no_room", "P1")
BLOCKED_BY_NEVER_LENT = BlockReason("held_for", "Q2")


class AllocateStep:
    """Allocations of one cycle, in the order in which they were made."""

    def __init__(self, state: PlanningState) -> None:
        """Start without allocations."""
        self._state = state
        self._infeasible_now: set[tuple[object, ...]] = set()
        self._infeasible_later: set[tuple[object, ...]] = set()
        self.holds = BackfillHolds(state)
        """Devices held for the oldest blocked gangs (O4)."""
        self.blocked_by_hold: dict[PlannedWorkload, BackfillHold] = {}
        """Workloads that would fit but for a hold."""
        self.blocks: dict[EquivalenceClass, BlockReason] = {}
        """Reason why no more pod sets of an equivalence class could be placed."""
        self.placed: list[PlannedWorker] = []
        """Workers in the order in which they got their devices."""

    # ---- R7

    def honour_reservations(self, *, start: bool) -> None:
        """Keep the reservations of the previous plan that are still valid. Start what is free now.

        A reservation ends if it breaks a cap, if its devices are gone for longer than a moment, or
        if its gang has lost other workers since and is below its minimum (P4).
        """
        for planned in sorted(
            self._state.reserved, key=lambda planned: (not planned.is_fixed, planned.age)
        ):
            reserved = [m for m in planned.members if m.worker.state is WorkerState.RESERVED]
            if not planned.is_known or not self._restore(planned, reserved):
                continue
            if start and planned.has_minimum(len(reserved), now=True):
                self._start_in_place(reserved)

    def _restore(self, planned: PlannedWorkload, reserved: Sequence[PlannedWorker]) -> bool:
        """Put a gang's reserved workers back at their places; undo all if one cannot return."""
        # Workers still stopping count: they queue again once they are gone, and complete the gang.
        if not planned.has_minimum(len(reserved) + planned.count(Phase.TERMINATING)):
            return False
        mark = self._state.mark()
        for member in reserved:
            booking = member.origin
            if (
                booking is None
                or not is_place_free(self._state.later, member, booking, returns=True)
                or cap_on(planned, booking.quota, is_guaranteed=bool(planned.guaranteed))
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
        if _request_gpus(reserved) and projects_over_limit(reserved[0].planned):
            self._state.roll_back(mark)
        else:
            self.placed += reserved

    # ---- O, Q, P

    def start_fitting_pod_sets(self) -> None:
        """Try the waiting pod sets, the most deprived project's next one first (O1)."""
        pod_sets = self.unreserved_pod_sets()
        pod_sets += [
            pod_set for planned in self._state.reserved for pod_set in _reserved_pod_sets(planned)
        ]
        order = QueueOrder(self._state, pod_sets)
        while (pod_set := order.pop()) is not None:
            if self._try_place(pod_set):
                order.skip_class()

    def start(self, pod_set: PodSet) -> bool:
        """Try one pod set; return True if it starts now."""
        self._try_place(pod_set)
        return pod_set.members[0].phase is Phase.STARTED

    def unreserved_pod_sets(self) -> list[PodSet]:
        """Return the pod sets of workloads with reservations that have no valid reservation."""
        return [
            pod_set for planned in self._state.reserved for pod_set in pending_pod_sets(planned)
        ]

    def use_freed_capacity(self, victims: Iterable[PodSet], *, start_waiting: bool) -> None:
        """Place remaining capacity: stopped pod sets move to it (R5), waiting ones start on it."""
        pod_sets = list(victims)
        if start_waiting:
            pod_sets += self.unreserved_pod_sets()
        self._infeasible_later.clear()
        order = QueueOrder(self._state, pod_sets, waiting=start_waiting)
        while (pod_set := order.pop()) is not None:
            is_going = pod_set.members[0].phase is Phase.TERMINATING
            if self._try_to_move(pod_set) if is_going else self._try_place(pod_set):
                order.skip_class()

    def _try_place(self, pod_set: PodSet) -> bool:
        """Place a pod set if caps and capacity allow. Return True to skip the rest of its class."""
        if _lacks_minimum(pod_set):
            return False  # that is no reason for other workloads to wait
        if pod_set.is_surplus and not self._may_grow(pod_set.planned, pod_set):
            return True
        match first_cap_exceeded(pod_set) or self._place(pod_set):
            case None:
                self.placed += pod_set.members
                return False
            case BackfillHold() as hold:
                if not pod_set.is_surplus:
                    self.blocked_by_hold[pod_set.planned] = hold
                return False  # other pod sets with this request may end before the hold starts
            case BlockReason() as block:
                self._store_block(pod_set, block)
                return True

    def _store_block(self, pod_set: PodSet, block: BlockReason) -> None:
        """Store why a class is blocked, unless its workload has its minimum or a reservation."""
        is_reserved = pod_set.members[0].phase is Phase.RESERVED
        if not (is_reserved or pod_set.is_surplus or pod_set.is_growth):
            self.blocks[self._state.equivalence_classes.class_of(pod_set)] = block

    # ---- E2, E3

    def grow(self) -> None:
        """Place surplus of elastic workers on idle GPUs; undo a growth that never pays off."""
        state = self._state
        pod_sets: list[PodSet] = []
        for planned in state.resizable:
            extra = [
                m
                for m in planned.members
                if m.phase is Phase.PENDING and planned.exceeds_request(m)
            ]
            if planned.is_known:
                placed = len(planned.members) - planned.count(Phase.PENDING, Phase.TERMINATING)
                pod_sets += surplus_pod_sets(planned, extra, placed)
        order = QueueOrder(state, pod_sets, waiting=False)
        while (pod_set := order.pop()) is not None:
            if self._try_place(pod_set):
                order.skip_class()
        for planned in state.resizable:
            grown = [m for m in planned.members[1:] if m.phase is Phase.STARTED]
            if grown and self._resizes(planned) and not self._repays(planned, 0):
                for member in grown:
                    state.set(member, Phase.PENDING, None)

    def _may_grow(self, planned: PlannedWorkload, pod_set: PodSet) -> bool:
        """Return True if one more GPU is worth its cost to an elastic workload (E3)."""
        if planned.sizes is None:  # the gain depends on the number of running workers, not on which
            running = planned.count(Phase.RUNNING, Phase.STARTED)
            return gain(planned.workload, None, running) > 0
        if gain(planned.workload, planned.sizes, pod_set.members[0].index) <= 0:
            return False
        if not self._resizes(planned):
            return True
        booking = planned.members[0].booking
        if planned.count(Phase.TERMINATING) or booking is None or booking.node < 0:
            return False
        idle = self._state.now.idle[booking.node]
        return self._repays(planned, min(idle, planned.count(Phase.PENDING)))

    def _resizes(self, planned: PlannedWorkload) -> bool:
        """Return True if it runs already, so that growing means a restart."""
        return planned.members[0].phase is Phase.RUNNING

    def _repays(self, planned: PlannedWorkload, more: int) -> bool:
        sizes, started = planned.sizes, planned.members[0].worker.started
        assert sizes is not None, "only elastic workers are resized"
        before = sizes.minimum + sum(m.phase is Phase.RUNNING for m in planned.members[1:])
        after = before + planned.count(Phase.STARTED) + more
        now = self._state.time
        return after > before and repays(planned.workload, before, after, started=started, now=now)

    def _place(self, pod_set: PodSet) -> BlockReason | BackfillHold | None:
        """Place a pod set now or later; return what blocks it, None if it has a place."""
        if any(not member.shape.nodes for member in pod_set.members):
            return _NO_NODE
        if not self.holds:
            return self._place_now_or_later(pod_set, pod_set.signature)
        with self.holds.open_to(pod_set) as may_pass:
            block = self._place_now_or_later(pod_set, (pod_set.signature, may_pass))
        if block == _NO_ROOM and pod_set.members[0].phase is Phase.PENDING:
            return self.holds.blocking_hold(pod_set) or _NO_ROOM
        return block

    def _place_now_or_later(
        self, pod_set: PodSet, signature: tuple[object, ...]
    ) -> BlockReason | None:
        state = self._state
        mark = state.mark()
        was_reserved = pod_set.members[0].phase is Phase.RESERVED
        uses_never_lent = False
        if not pod_set.falls_short(now=True) and signature not in self._infeasible_now:
            for member in pod_set.members:
                if was_reserved:
                    state.set(member, Phase.PENDING, None)
            if not self._start_on_preferred(pod_set) and not place(
                state, pod_set.members, Phase.STARTED
            ):
                self._infeasible_now.add(signature)
            elif _request_gpus(pod_set.members) and projects_over_limit(pod_set.planned):
                pass  # Q3: it may reserve the place until the stopping workers have ended
            elif respects_never_lent(state, pod_set.planned):
                return None
            else:
                uses_never_lent = True
            state.roll_back(mark)
        if was_reserved:
            return _NO_ROOM  # it keeps its reservation
        # E1: surplus only runs on idle GPUs, so nothing is reserved for it.
        if (
            not pod_set.is_surplus
            and not uses_never_lent
            and signature not in self._infeasible_later
        ):
            if not place(state, pod_set.members, Phase.RESERVED):
                self._infeasible_later.add(signature)
            elif respects_never_lent(state, pod_set.planned):
                return None
            else:
                uses_never_lent = True
            state.roll_back(mark)
        return BLOCKED_BY_NEVER_LENT if uses_never_lent else _NO_ROOM

    def _start_on_preferred(self, pod_set: PodSet) -> bool:
        """Start a pod set on the first GPU type of its preference where it fits (P5)."""
        return any(
            place(self._state, pod_set.members, Phase.STARTED, shapes)
            for shapes in self._state.shapes_by_gpu_type(pod_set.members)
        )

    def _try_to_move(self, pod_set: PodSet) -> bool:
        """Place a stopped pod set elsewhere if possible. Return True to skip its class."""
        planned = pod_set.planned
        stays = (Phase.RUNNING, Phase.STARTED, Phase.MOVED)
        if pod_set.is_surplus and planned.count(*stays) < planned.minimum:
            return False
        if pod_set.falls_short():
            return False
        if first_cap_exceeded(pod_set):
            return True
        signature = pod_set.signature
        if signature in self._infeasible_later:
            return True
        mark = self._state.mark()
        if not place(self._state, pod_set.members, Phase.MOVED):
            self._infeasible_later.add(signature)
            return True
        if respects_never_lent(self._state, planned):
            self.placed += pod_set.members
        else:
            self._state.roll_back(mark)
        return False


def _lacks_minimum(pod_set: PodSet) -> bool:
    """Return True if its workload would lack workers that come first.

    Those are workers of its minimum (P4), and for surplus the guaranteed ones too (E4).
    """
    planned = pod_set.planned
    if pod_set.is_surplus:
        running = planned.count(Phase.RUNNING, Phase.STARTED)
        return running < max(planned.minimum, planned.guaranteed)
    return pod_set.falls_short(now=pod_set.members[0].phase is Phase.RESERVED)


def _reserved_pod_sets(planned: PlannedWorkload) -> list[PodSet]:
    """Return a pod set of the workers that wait for reservations: they may start elsewhere now."""
    reserved = tuple(m for m in planned.members if m.phase is Phase.RESERVED)
    return [PodSet(planned, reserved, is_surplus=False)] if reserved else []


def _request_gpus(members: Iterable[PlannedWorker]) -> bool:
    return any(member.shape.quota for member in members)


def is_place_free(
    capacity: FreeCapacity, member: PlannedWorker, booking: Booking, *, returns: bool = False
) -> bool:
    """Return True if a worker's earlier place is free, and still meets its request.

    With `returns`, also if it will be once its broken devices return.
    """
    shape, node = member.shape, booking.node
    return (
        (node in shape.nodes or (returns and node in shape.returning))
        and len(booking.devices) == shape.devices
        and capacity.has_base(node, shape)
        and all(
            capacity.fits_device(node, device, shape)
            or (returns and capacity.fits_returned(node, device, shape))
            for device in booking.devices
        )
    )
