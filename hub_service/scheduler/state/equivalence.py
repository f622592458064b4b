"""Waiting workers as units that start together, in lanes of equal requests (O2).

Each account's units are sorted. If the head of a lane finds no place, no unit behind it does
either, so that a cycle costs the number of lanes and not of workloads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from runai.hub_service.scheduler.model.elastic_sizes import LINEAR, gain
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.project_tree import ProjectNode

OrderKey = tuple[int, int, int, int, int, str, int]
LaneKey = tuple[int, int, int, tuple[int | str, ...], str, str, bool, bool]

_FIXED, _MINIMUM, _SURPLUS = 0, 1, 2
_SCALE = 10**12  # parts of a surplus are compared as integers: held * _SCALE // asked
_key = attrgetter("key")


class PodSet:
    """Workers of one workload that start together: its minimum, or one surplus worker (E1)."""

    __slots__ = (
        "demand",
        "is_growth",
        "is_surplus",
        "item",
        "key",
        "lane",
        "members",
        "signature",
    )

    def __init__(
        self,
        item: PlannedWorkload,
        members: tuple[PlannedWorker, ...],
        *,
        is_surplus: bool,
        is_growth: bool = False,
        part: int = 0,
    ) -> None:
        """Group workers; `part` is what the workload holds of its surplus before this unit (E1)."""
        self.is_growth = is_growth
        """True for a guaranteed worker beyond the minimum (E4)."""
        self.item = item
        self.members = members
        self.is_surplus = is_surplus
        first = members[0]
        if len(members) == 1:
            self.demand = 0 if first.standing is Phase.RESERVED else first.kind.quota
            self.signature: tuple[int | str, ...] = (first.kind.order,)
        else:
            held = Phase.RESERVED
            self.demand = sum(m.kind.quota for m in members if m.standing is not held)
            self.signature = tuple(sorted([member.kind.order for member in members]))
        if not is_surplus:
            turn = int(
                is_growth
                or len(members) == len(item.members)
                or not item.count(Phase.RUNNING, Phase.STARTED)
            )
        else:
            # E3: the next GPU goes to the workload with the largest gain.
            turn = LINEAR - gain(item.workload, item.sizes, first.index)
            if item.sizes is not None:
                # It fits only on the node of its other parts, so no other workload shares this
                # lane.
                self.signature = (item.name,)
        # O2: sessions, then minima by priority (gangs that run below theirs first), age and name.
        # Surplus of elastic workloads comes after every waiting minimum, the smallest part first
        # (E1).
        self.key: OrderKey = (
            _SURPLUS if is_surplus else _FIXED if item.is_fixed else _MINIMUM,
            -item.rank,
            turn,
            part,
            *item.age,
            first.index,
        )
        self.lane: EquivalenceClass | None = None

    @property
    def is_guaranteed(self) -> bool:
        """Return True if it starts within its project's quota or waits (E4)."""
        return bool(self.item.guaranteed) and not self.is_surplus

    def falls_short(self, *, now: bool = False) -> bool:
        """Return True if the workload would still be below its minimum after placing this unit.

        That happens if workers were stopped since the unit was formed; the workload then waits
        whole (P4). `now` counts running workers only, without reserved and moving ones.
        """
        return not self.is_surplus and not self.item.has_minimum(len(self.members), now=now)

    def __lt__(self, other: PodSet) -> bool:
        return self.key < other.key


class EquivalenceClass:
    """Sorted units of one account with equal requests. If one is blocked, the rest are too."""

    __slots__ = ("account", "changes", "key", "units")

    def __init__(self, account: ProjectNode, key: LaneKey) -> None:
        self.account = account
        self.key = key
        self.units: list[PodSet] = []
        self.changes = 0
        """Number of units added and removed so far."""


def pending_units(item: PlannedWorkload) -> list[PodSet]:
    """Group a workload's pending workers into units; none while too many are stopping."""
    pending = [member for member in item.members if member.standing is Phase.PENDING]
    if item.sizes is not None:
        pending = [member for member in pending if not item.is_extra(member)]
    if not pending or not item.is_known:
        return []
    if len(pending) == len(item.members) == item.minimum:
        return [PodSet(item, tuple(pending), is_surplus=False)]
    placed = item.count(Phase.RUNNING, Phase.STARTED, Phase.RESERVED, Phase.MOVED)
    lacking = max(0, item.minimum - placed)
    if lacking > len(pending):
        return []
    units = [PodSet(item, tuple(pending[:lacking]), is_surplus=False)] if lacking else []
    growth = max(0, item.guaranteed - max(placed, item.minimum))
    beyond = lacking + growth
    units += [PodSet(item, (m,), is_surplus=False, is_growth=True) for m in pending[lacking:beyond]]
    return units + surplus_units(item, pending[beyond:], placed + beyond)


def surplus_units(
    item: PlannedWorkload, members: Sequence[PlannedWorker], placed: int
) -> list[PodSet]:
    """Return the units of surplus workers that follow `placed` workers (E1)."""
    if not members:
        return []
    least = max(item.minimum, item.guaranteed)
    asked = len(item.members)
    if item.sizes is not None and not item.is_extra(members[0]):
        asked = 1 + item.sizes.asked - item.sizes.least
    held = max(0, placed - least)
    return [
        PodSet(item, (m,), is_surplus=True, part=(held + n) * _SCALE // (asked - least))
        for n, m in enumerate(members)
    ]


class Lanes:
    """Lanes of every account."""

    def __init__(self, *, by_user: bool) -> None:
        """Start empty; `by_user` separates the lanes of each user (O3)."""
        self._by_user = by_user
        self._lanes: dict[ProjectNode, dict[LaneKey, EquivalenceClass]] = {}
        self._units: dict[PlannedWorkload, list[PodSet]] = {}

    @property
    def accounts(self) -> list[ProjectNode]:
        """Return the accounts that have lanes, or had some."""
        return list(self._lanes)

    def of(self, account: ProjectNode) -> list[EquivalenceClass]:
        """Return an account's lanes."""
        return list(self._lanes.get(account, {}).values())

    def key_of(self, unit: PodSet) -> LaneKey:
        """Return the part of a unit's request that decides if it can start."""
        workload = unit.item.workload
        user = workload.user if self._by_user else ""
        return (
            *unit.key[:3],
            unit.signature,
            workload.pack_by,
            user,
            unit.is_guaranteed,
            unit.is_growth,
        )

    def lane_of(self, unit: PodSet) -> EquivalenceClass:
        """Return the unit's lane: its own, one with its key, or a new unstored one."""
        if unit.lane is None:
            account, key = unit.item.account, self.key_of(unit)
            unit.lane = self._lanes.get(account, {}).get(key) or EquivalenceClass(account, key)
        return unit.lane

    def add(self, item: PlannedWorkload) -> bool:
        """Queue a workload's pending units; return True if there are any."""
        units = pending_units(item)
        if units:
            self._units[item] = units
            for unit in units:
                self._add(unit)
        return bool(units)

    def _add(self, unit: PodSet) -> None:
        account, key = unit.item.account, self.key_of(unit)
        lanes = self._lanes.setdefault(account, {})
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = EquivalenceClass(account, key)
        unit.lane = lane
        lane.changes += 1
        units = lane.units
        if not units or units[-1].key < unit.key:
            units.append(unit)
        else:
            insort(units, unit, key=_key)

    def remove(self, item: PlannedWorkload) -> None:
        """Remove a workload from its lanes; drop lanes that become empty."""
        for unit in self._units.pop(item, ()):
            lane = unit.lane
            assert lane is not None, "only queued units are removed"
            index = bisect_left(lane.units, unit.key, key=_key)
            assert lane.units[index] is unit, "its place follows from its key"
            del lane.units[index]
            lane.changes += 1
            if not lane.units:
                del self._lanes[lane.account][lane.key]

    def clear(self) -> None:
        """Clear the units of every lane, because lanes and units reference each other."""
        for lanes in self._lanes.values():
            for lane in lanes.values():
                lane.units.clear()
