"""Upper bounds of reclaimable capacity per node, to skip infeasible searches.

The bounds follow from R1, R2, R6, R8 and E1. They never exclude a search that could succeed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import ACTIVE, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.victim_order import protected_until
from runai.hub_service.scheduler.steps.victim_selection import PreemptionScope


class Reclaimable(NamedTuple):
    """Devices that an account could lose."""

    total: int
    largest: int
    """Most devices that one of its workloads could lose."""


class AccountDevices(NamedTuple):
    """Devices that one account could lose on some nodes."""

    account: ProjectNode
    devices: dict[PlannedWorkload, int]
    surplus: dict[PlannedWorkload, int]
    """Upper bound of surplus among them, by workload (E1)."""
    is_shared: bool
    """True if other accounts may use the same devices."""
    everything: Reclaimable
    all_surplus: Reclaimable


class Bounds:
    """Reclaimable devices by node; valid until a worker starts or stops."""

    def __init__(self, state: State) -> None:
        """Start without counts."""
        self._state = state
        self._on: dict[int, list[AccountDevices]] = {}
        self._over: dict[tuple[ProjectNode, bool], int] = {}
        self._protected: dict[PlannedWorkload, bool] = {}

    def could_suffice(
        self, nodes: Collection[int], unit: PodSet, way: PreemptionScope, workers: int = 1
    ) -> bool:
        """Return True if `workers` workers of one kind could fit once all possible victims left."""
        kind = unit.members[0].kind
        idle = sum(self._state.later.idle[node] for node in nodes)
        wanted = workers * kind.devices - idle
        if not kind.is_whole or wanted <= 0:
            return True
        mine = unit.item.account
        within = mine.allocated + unit.demand <= mine.quota or way.own
        for held in self._reclaimable(nodes):
            if held.account is mine:
                wanted -= _own_loss(held, unit, way) if way.own else 0
            elif way.others:
                loss = held.all_surplus if way.surplus_only else held.everything
                if held.is_shared or mine.parent is not None or held.account.parent is not None:
                    # A fraction counts less than the device it frees; in a tree, ancestors are
                    # judged (R2).
                    wanted -= loss.total
                else:
                    wanted -= min(loss.total, self._bound(held.account, loss.largest, within))
            if wanted <= 0:
                return True
        return False

    def is_anybody_over(self, unit: PodSet, way: PreemptionScope) -> bool:
        """Return True if any project may yield something (R2); True without a check in trees.

        Also True for claims on the own project.
        """
        mine, roots = unit.item.account, self._state.tree.roots
        if way.own or mine.parent is not None or any(root.children for root in roots):
            return True
        within = mine.allocated + unit.demand <= mine.quota
        return any(self._bound(root, 1, within) > 0 for root in roots if root is not mine)

    def _bound(self, account: ProjectNode, largest: int, within: bool) -> int:  # noqa: FBT001  hot
        """Bound by R2. A unit may go while its project is over, so the last one may exceed it."""
        over = self._over.get((account, within))
        if over is None:
            bound = account.quota if within else max(account.quota, account.fair_share)
            bound = min(bound, account.limit)
            over = -((bound - account.allocated) // WHOLE_GPU)
            self._over[account, within] = over
        return over - 1 + largest if over > 0 else 0

    def _reclaimable(self, nodes: Collection[int]) -> list[AccountDevices]:
        if len(nodes) != 1:
            return self._count(nodes)
        (node,) = nodes
        known = self._on.get(node)
        if known is None:
            known = self._on[node] = self._count(nodes)
        return known

    def _count(self, nodes: Iterable[int]) -> list[AccountDevices]:
        devices: dict[ProjectNode, dict[PlannedWorkload, int]] = {}
        shared: set[ProjectNode] = set()
        for member in (m for node in nodes for m in self._state.on_node.get(node, ())):
            self._state.victim_looks += 1
            item, booking = member.item, member.booking
            if booking is None or item.is_fixed or member.standing not in ACTIVE:
                continue
            there = devices.setdefault(item.account, {})
            there[item] = there.get(item, 0) + len(booking.devices)
            if not member.kind.is_whole:
                shared.add(item.account)
        held: list[AccountDevices] = []
        for account, everything in devices.items():
            surplus = {item: s for item, n in everything.items() if (s := _surplus(item, n))}
            there = everything
            if self._state.protects:
                there = {i: n for i, n in everything.items() if not self._is_protected(i)}
            losses = _loss(there), _loss(surplus)
            held.append(AccountDevices(account, there, surplus, account in shared, *losses))
        return held

    def _is_protected(self, item: PlannedWorkload) -> bool:
        """Return True if pausing is not allowed yet (R8); elastic workloads may shrink first."""
        if len(item.members) > item.minimum:
            return False
        known = self._protected.get(item)
        if known is None:
            state = self._state
            active = [member for member in item.members if member.standing in ACTIVE]
            until = protected_until(item, active, state.policy, state.time)
            known = self._protected[item] = until is not None
        return known


def _loss(devices: dict[PlannedWorkload, int]) -> Reclaimable:
    return Reclaimable(sum(devices.values()), max(devices.values(), default=0))


def _surplus(item: PlannedWorkload, devices: int) -> int:
    """Return the most devices that a workload could lose and still run (E1, E2)."""
    if len(item.members) == item.minimum:
        return 0
    beyond = max(0, item.count(*ACTIVE) - item.minimum)
    return min(devices, beyond * max(m.kind.devices for m in item.members[item.minimum :]))


def _own_loss(held: AccountDevices, unit: PodSet, way: PreemptionScope) -> int:
    """Return the most that a claimant may take of its own project (R1, E1).

    That is workloads of lower priority, and surplus.
    """
    claimant = unit.item
    if way.surplus_only:
        return held.all_surplus.total
    if claimant.is_fixed:
        return held.everything.total
    return sum(
        count if item.rank < claimant.rank else held.surplus.get(item, 0)
        for item, count in held.devices.items()
    )
