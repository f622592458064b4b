"""Incremental feasibility check of a pod set while victims are taken and given back.

Only changed nodes are counted again, so that a search costs one check per victim and not one per
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import Booking


class FitCheck:
    """Feasibility of placing certain workers in the future free capacity."""

    def __init__(self, state: PlanningState, members: Sequence[PlannedWorker]) -> None:
        """Store the workers; counting starts with the first call of `fits`."""
        self._state = state
        self._members = members
        shape, *other_shapes = {member.shape for member in members}
        self.nodes = shape.nodes
        if other_shapes:
            self.nodes = shape.nodes.union(*(other.nodes for other in other_shapes))
        # Slots add up exactly for whole devices, and for fractions on one device each.
        adds_up = not other_shapes and (shape.is_whole or shape.devices <= 1)
        self._shape = shape if adds_up else None
        self.counts_base = self._shape is None or bool(shape.cpu or shape.memory)
        """True if CPU or memory may lack too, so that each release may change which others help."""
        self._slots: dict[int, int] | None = None
        self._total_slots: int
        self._is_known = False
        """True if the result for one worker is valid, except for the nodes in `_freed_nodes`."""
        self.free_place: tuple[int, tuple[int, ...]] | None = None
        """Place of one worker, if it fits."""
        self._freed_nodes: set[int] = set()

    def reset(self, members: Sequence[PlannedWorker], *, fits: bool | None) -> None:
        """Take other workers with the same request; `fits` is their result if already known."""
        self._members = members
        self._slots = None
        self._is_known, self.free_place = fits is False, None
        self._freed_nodes.clear()

    def gains_from(self, booking: Booking) -> bool:
        """Return True if one more worker could fit after this booking is released."""
        shape, node, capacity = self._shape, booking.node, self._state.later
        if node not in self.nodes:
            return False
        if shape is None:
            return True
        if not self.counts_base:
            return bool(booking.devices)
        needed = capacity.slots(node, shape) + 1
        return (
            (booking.cpu > 0 and capacity.cpu[node] < needed * shape.cpu)
            or (booking.memory > 0 and capacity.memory[node] < needed * shape.memory)
            or (
                bool(shape.devices and booking.devices)
                and capacity.device_slots(node, shape) < needed
            )
        )

    def recount_freed(self, nodes: Iterable[int]) -> None:
        """Update the counts after victims on these nodes were released."""
        if self.free_place is not None:
            self._is_known, self.free_place = False, None  # another place may be better now
        self._freed_nodes.update(nodes)
        self._recount(nodes)

    def recount_restored(self, nodes: Iterable[int]) -> None:
        """Update the counts after victims on these nodes were restored."""
        self._is_known, self.free_place = False, None
        self._recount(nodes)

    def fits(self) -> bool:
        """Return True if the workers fit the current state, which stays unchanged."""
        shape, capacity = self._shape, self._state.later
        if shape is None:
            return self._fits_in_trial()
        if len(self._members) > 1:
            if self._slots is None:
                self._slots = capacity.slots_by_node(shape)
                self._total_slots = sum(self._slots.values())
            return self._total_slots >= len(self._members)
        if self._is_known and not self._freed_nodes:
            return self.free_place is not None
        if not self._is_known:
            self.free_place = capacity.find(shape)
        elif self.free_place is None:
            # It did not fit before, so it can only fit where capacity was freed.
            places = []
            for node in self._freed_nodes:
                devices = capacity.devices_on(node, shape) if node in shape.nodes else None
                if devices is not None:
                    places.append((node, devices))
            if places:
                self.free_place = places[0] if len(places) == 1 else capacity.find(shape)
        self._is_known = True
        self._freed_nodes.clear()
        return self.free_place is not None

    def _recount(self, nodes: Iterable[int]) -> None:
        if self._slots is None or self._shape is None:
            return
        for node in nodes:
            if node in self._shape.nodes:
                slots = self._state.later.slots(node, self._shape)
                self._total_slots += slots - self._slots.get(node, 0)
                self._slots[node] = slots

    def _fits_in_trial(self) -> bool:
        mark = self._state.mark()
        placed = place(self._state, self._members, Phase.RESERVED)
        self._state.roll_back(mark)
        return placed
