"""Capacity held for the oldest blocked gang, with backfill until it starts (O4).

The expected start of a blocked unit follows from the ends of running workloads. Idle devices there
are held; other units may use them only if they do not delay it. No worker is moved or stopped.
Active if the policy has `backfill`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Project, Worker, Workload, end_of
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.quota_check import cap_in_the_way
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge
from runai.hub_service.scheduler.state.request_shape import RequestShape

NEVER = 1 << 62
_NOTHING_HELD: AbstractContextManager[tuple[bool, ...]] = nullcontext(())

DevicePlace = tuple[int, int]
"""A node and the number of a device on it."""


class Hold(NamedTuple):
    """Devices held for a unit until its expected start."""

    unit: PodSet
    start: int
    is_within_quota: bool
    """True if the unit is within its project's quota by its start."""
    keepers: tuple[PlannedWorker, ...]
    """Placeholder workers on the idle ones of these devices."""


class Holds:
    """Holds of one cycle; empty unless the policy has `backfill`."""

    def __init__(self, state: State) -> None:
        """Start without holds."""
        self._state = state
        self._holds: list[Hold] = []
        self._ends: dict[PlannedWorkload, int] = {}
        self._ends_in: dict[ProjectNode, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        """Return True if there is any hold."""
        return bool(self._holds)

    # ---- holds

    def reserve(self) -> None:
        """Hold, for the oldest blocked unit of each project, the place where it starts soonest."""
        state = self._state
        blocked = [unit for account in state.lanes.accounts for unit in self._oldest(account)]
        if not blocked:
            return
        free_at = self._when_devices_are_free()
        for unit in sorted(blocked, key=lambda unit: unit.item.age):
            found = _soonest(unit, free_at)
            if found is None:
                continue
            start, devices = found
            start = max(start, self._fits_from(unit, _entitlement))
            is_within_quota = self._fits_from(unit, _quota) <= start
            for node, device in devices:
                free_at[node][device] = NEVER
            self._holds.append(Hold(unit, start, is_within_quota, self._keepers(unit, devices)))

    def _oldest(self, account: ProjectNode) -> list[PodSet]:
        """Return a project's first unit that will fit its share but not the free capacity now."""
        lanes = [lane for lane in self._state.lanes.of(account) if not lane.units[0].is_surplus]
        for unit in sorted((lane.units[0] for lane in lanes), key=lambda unit: unit.key):
            if (
                unit.demand
                and self._fits_from(unit, _entitlement) < NEVER
                and cap_in_the_way(unit) is None
                and all(member.kind.nodes for member in unit.members)
                and not self._fits_now(unit)
            ):
                return [unit]
        return []

    def _fits_now(self, unit: PodSet) -> bool:
        mark = self._state.mark()
        fits = place(self._state, unit.members, Phase.STARTED)
        self._state.roll_back(mark)
        return fits

    def _when_devices_are_free(self) -> list[list[int]]:
        """Return, for every device, when its last worker is expected to leave."""
        state = self._state
        free_at: list[list[int]] = [
            [state.time if milli == WHOLE_GPU else NEVER for milli in devices]
            for devices in state.later.milli
        ]
        busy: dict[DevicePlace, int] = {}
        for node, members in state.on_node.items():
            for member in members:
                end = self._end(member.item)
                for device in member.booking.devices if member.booking else ():
                    busy[node, device] = max(busy.get((node, device), 0), end)
        for (node, device), at in busy.items():
            free_at[node][device] = at
        return free_at

    def _end(self, item: PlannedWorkload) -> int:
        """Return when a running workload is expected to end."""
        if item not in self._ends:
            end = end_of(item.workload, self._state.time)
            self._ends[item] = NEVER if end is None else end.at
        return self._ends[item]

    def _fits_from(self, unit: PodSet, bound: Callable[[ProjectNode], int]) -> int:
        """Return when its project holds so little that a unit stays within a bound at each level.

        A gang of the whole quota waits for its own project's running work, which ends by itself.
        """
        since = self._state.time
        for account in unit.item.account.path:
            excess = account.allocated + unit.demand - bound(account)
            if excess <= 0:
                continue
            for end, milli in self._ends_of(account):
                excess -= milli
                if excess <= 0:
                    since = max(since, end)
                    break
            else:
                return NEVER  # alone it is beyond the bound
        return since

    def _ends_of(self, account: ProjectNode) -> list[tuple[int, int]]:
        """Return the expected ends of an account's running work, each with its milli-GPU."""
        if account not in self._ends_in:
            self._ends_in[account] = sorted(
                (self._end(member.item), member.booking.quota)
                for members in self._state.on_node.values()
                for member in members
                if member.booking is not None and account in member.item.account.path
            )
        return self._ends_in[account]

    def _keepers(self, unit: PodSet, devices: list[DevicePlace]) -> tuple[PlannedWorker, ...]:
        state = self._state
        workload = Workload(name=unit.item.name, project=unit.item.name, workers=())
        # A separate account, so that held devices count for no project.
        item = PlannedWorkload(workload, Charge(ProjectNode(Project(name=unit.item.name), None)))
        keepers: list[PlannedWorker] = []
        for node, device in devices:
            if _is_idle(state, node, device):
                worker = Worker(name=f"{unit.item.name} {node}:{device}", gpus=MilliGpu(WHOLE_GPU))
                keeper = PlannedWorker(worker, len(keepers), item, _KEEPER)
                state.set(keeper, Phase.RESERVED, state.book(_KEEPER, node, (device,)))
                keepers.append(keeper)
        return tuple(keepers)

    # ---- backfill

    def open_to(self, unit: PodSet) -> AbstractContextManager[tuple[bool, ...]]:
        """Lift the holds that a unit may use while it is tried. Yield True for each of them."""
        return self._lift_for(unit) if self._holds else _NOTHING_HELD

    @contextmanager
    def _lift_for(self, unit: PodSet) -> Generator[tuple[bool, ...]]:
        may_pass = tuple(self._may_pass(unit, hold) for hold in self._holds)
        lifted = [
            (keeper, keeper.booking)
            for hold, passes in zip(self._holds, may_pass, strict=True)
            if passes
            for keeper in hold.keepers
            if keeper.booking is not None
        ]
        for keeper, _ in lifted:
            self._state.set(keeper, Phase.PENDING, None)
        yield may_pass
        for keeper, booking in lifted:
            # A device that a worker took meanwhile is held no longer.
            (device,) = booking.devices
            if _is_idle(self._state, booking.node, device):
                self._state.set(keeper, Phase.RESERVED, booking)

    def in_the_way(self, unit: PodSet) -> Hold | None:
        """Return the hold without which this unit would fit now."""
        state = self._state
        mark = state.mark()
        found = None
        for hold in self._holds:
            for keeper in hold.keepers:
                if keeper.booking is not None:
                    state.set(keeper, Phase.PENDING, None)
            if hold.unit is not unit and place(state, unit.members, Phase.STARTED):
                found = hold
                break
        state.roll_back(mark)
        return found

    def release(self) -> None:
        """Remove all holds, after every unit was tried."""
        for hold in self._holds:
            for keeper in hold.keepers:
                if keeper.booking is not None:
                    self._state.set(keeper, Phase.PENDING, None)

    def _may_pass(self, unit: PodSet, hold: Hold) -> bool:
        mine, theirs = unit.item, hold.unit.item
        if unit is hold.unit or mine.is_fixed:
            return True  # Q1: build GPUs are always available
        workload, left = mine.workload, hold.start - self._state.time
        # A limit is kept; a wrong expectation has no consequence.
        if workload.max_runtime is not None and workload.max_runtime <= left:
            return True
        if mine.account is theirs.account:
            return unit.key < hold.unit.key
        return _fits_quota(unit) and not hold.is_within_quota


_KEEPER = RequestShape(order=-1, devices=1, milli=int(WHOLE_GPU), mib=0, cpu=0, memory=0)


def _is_idle(state: State, node: int, device: int) -> bool:
    room = state.later
    return room.milli[node][device] == WHOLE_GPU and room.mib[node][device] == room.device_mib[node]


def _entitlement(account: ProjectNode) -> int:
    return max(account.quota, account.fair_share)


def _quota(account: ProjectNode) -> int:
    return account.quota


def _fits_quota(unit: PodSet) -> bool:
    return all(
        account.allocated + unit.demand <= account.quota for account in unit.item.account.path
    )


def _soonest(unit: PodSet, free_at: list[list[int]]) -> tuple[int, list[DevicePlace]] | None:
    """Return when and where all workers of a unit fit first; None if unknown.

    Only whole devices count, a fraction as one. CPU and memory are not predicted.
    """
    start, taken = 0, set[DevicePlace]()
    kinds: dict[RequestShape, int] = {}
    for member in unit.members:
        kinds[member.kind] = kinds.get(member.kind, 0) + 1
    for kind, wanted in sorted(kinds.items(), key=lambda kind: (-kind[0].devices, kind[0].order)):
        if not kind.devices:
            continue
        queue = [_next_slot(kind, node, free_at, taken) for node in kind.nodes]
        heapify(queue)
        for _ in range(wanted):
            if not queue:
                return None
            at, node, devices = heappop(queue)
            if at >= NEVER:
                return None
            start = max(start, at)
            taken.update((node, device) for device in devices)
            heappush(queue, _next_slot(kind, node, free_at, taken))
    return start, sorted(taken)


def _next_slot(
    kind: RequestShape, node: int, free_at: list[list[int]], taken: set[DevicePlace]
) -> tuple[int, int, list[int]]:
    """Return when, and on which devices, a node has room for a kind's next worker."""
    free = sorted(
        (at, device) for device, at in enumerate(free_at[node]) if (node, device) not in taken
    )[: kind.devices]
    at = free[-1][0] if len(free) == kind.devices else NEVER
    return at, node, [device for _, device in free]
