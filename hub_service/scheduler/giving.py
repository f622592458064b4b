"""How much nodes could give at most, by counting: infeasible searches need not be begun.

Knows an upper bound of what R1, R2, E1 and R6 let a claimant take on some nodes. Never says no
where a search could succeed; what really can be taken is `search`'s. Used by `reclaim`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from runai.hub_service.scheduler.givers import Way
from runai.hub_service.scheduler.items import ACTIVE, Item
from runai.hub_service.scheduler.lanes import Unit
from runai.hub_service.scheduler.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import UNLIMITED, Account


class Held(NamedTuple):
    """What one item has on one node that it could lose, in devices."""

    item: Item
    devices: int
    surplus: int
    """Of these at most so many as surplus (E1)."""
    is_shared: bool
    """Whether others may be on the same device."""


class Giving:
    """What there is to take, node by node; counted once, as long as nobody takes anything."""

    def __init__(self, state: State) -> None:
        """Count nothing yet."""
        self._state = state
        self._on: dict[int, list[Held]] = {}

    def could_suffice(self, nodes: Collection[int], unit: Unit, way: Way, workers: int = 1) -> bool:
        """Tell whether so many workers of one kind could have room if all left that may go."""
        kind = unit.members[0].kind
        idle = sum(self._state.later.idle[node] for node in nodes)
        wanted = workers * kind.devices - idle
        if not kind.is_whole or wanted <= 0:
            return True
        mine, claimant = unit.item.account, unit.item
        held: dict[Account, dict[Item, int]] = {}
        shares: set[Account] = set()
        for there in self._there(nodes):
            item, devices = there.item, there.devices
            account = item.account
            if not (way.own if account is mine else way.others):
                continue
            goes_first = account is not mine or claimant.is_fixed or item.rank < claimant.rank
            if way.surplus_only or not goes_first:
                devices = there.surplus
            if devices:
                parts = held.setdefault(account, {})
                parts[item] = parts.get(item, 0) + devices
                if there.is_shared:
                    shares.add(account)
        for account, parts in held.items():
            units = parts.values()
            wanted -= _most(account, units, unit, way, counts=account not in shares)
        return wanted <= 0

    def _there(self, nodes: Collection[int]) -> Iterator[Held]:
        for node in nodes:
            known = self._on.get(node)
            if known is None:
                known = self._on[node] = list(self._count(node))
            yield from known

    def _count(self, node: int) -> Iterator[Held]:
        devices: dict[Item, int] = {}
        shared: set[Item] = set()
        for member in self._state.on_node.get(node, ()):
            item, booking = member.item, member.booking
            if booking is None or item.is_fixed or member.standing not in ACTIVE:
                continue
            devices[item] = devices.get(item, 0) + len(booking.devices)
            if not member.kind.is_whole:
                shared.add(item)
        for item, count in devices.items():
            surplus = 0
            if len(item.members) > item.minimum:
                beyond = max(0, item.count(*ACTIVE) - item.minimum)
                largest = max(member.kind.devices for member in item.members[item.minimum :])
                surplus = min(count, beyond * largest)
            yield Held(item, count, surplus, item in shared)


def _most(account: Account, units: Collection[int], unit: Unit, way: Way, *, counts: bool) -> int:
    """Bound the devices that an account may lose where its items could lose these."""
    everything = sum(units)
    mine = unit.item.account
    if account is mine or not counts or account.parent is not None or mine.parent is not None:
        # A fraction costs its project less than the device it frees; in a tree others are judged.
        return everything
    # R2: a unit may go while its project is over, so all but the last fit into what it is over.
    is_within_quota = mine.allocated + unit.demand <= mine.quota or way.own
    bound = account.quota if is_within_quota else max(account.quota, account.fair_share)
    over = min(UNLIMITED, account.allocated - bound)
    if over <= 0:
        return 0
    return min(everything, -(-over // WHOLE_GPU) - 1 + max(units))
