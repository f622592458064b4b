"""How much nodes could give at most, by counting: infeasible searches need not be begun.

Knows an upper bound of what R1, R2, E1 and R6 let a claimant take on some nodes. Never says no
where a search could succeed; what really can be taken is `search`'s. Used by `reclaim`.
"""

from __future__ import annotations

from collections.abc import Collection

from runai.hub_service.scheduler.items import ACTIVE, Item
from runai.hub_service.scheduler.lanes import Unit
from runai.hub_service.scheduler.quantity import WHOLE_GPU
from runai.hub_service.scheduler.search import Way
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import UNLIMITED, Account


def could_suffice(
    state: State, nodes: Collection[int], unit: Unit, way: Way, workers: int = 1
) -> bool:
    """Tell whether so many workers of one kind could have room if all left that may be taken."""
    kind = unit.members[0].kind
    idle, wanted = sum(state.later.idle[node] for node in nodes), workers * kind.devices
    if not kind.is_whole or idle >= wanted:
        return True
    held: dict[Account, dict[Item, int]] = {}
    shares: set[Account] = set()
    for member in (member for node in nodes for member in state.on_node.get(node, ())):
        item = member.item
        if member.booking is None or item.is_fixed or member.standing not in ACTIVE:
            continue
        there = held.setdefault(item.account, {})
        there[item] = there.get(item, 0) + len(member.booking.devices)
        if not member.kind.is_whole:
            shares.add(item.account)
    for account, items in held.items():
        loses = {item: _loses(item, devices, unit, way) for item, devices in items.items()}
        idle += _most(account, loses, unit, way, counts=account not in shares)
        if idle >= wanted:
            return True
    return False


def _loses(item: Item, devices: int, unit: Unit, way: Way) -> int:
    """Bound the devices that an item could lose of those that it has on some nodes."""
    claimant = unit.item
    is_mine = item.account is claimant.account
    if not way.surplus_only and not (
        is_mine and item.rank >= claimant.rank and not claimant.is_fixed
    ):
        return devices
    # R6, E1: surplus alone, of the own project what is lent.
    if len(item.members) == item.minimum:
        return 0
    surplus = max(0, item.count(*ACTIVE) - item.minimum)
    largest = max(member.kind.devices for member in item.members[item.minimum :])
    return min(devices, surplus * largest)


def _most(account: Account, loses: dict[Item, int], unit: Unit, way: Way, *, counts: bool) -> int:
    """Bound the devices that an account may lose where its items could lose these."""
    everything = sum(loses.values())
    mine = unit.item.account
    if account is mine:
        return everything if way.own else 0
    if not way.others:
        return 0
    if not counts or account.parent is not None or mine.parent is not None:
        # A fraction costs its project less than the device it frees; in a tree others are judged.
        return everything
    # R2: a unit may go while its project is over, so all but the last fit into what it is over.
    is_within_quota = mine.allocated + unit.demand <= mine.quota or way.own
    bound = account.quota if is_within_quota else max(account.quota, account.fair_share)
    over = min(UNLIMITED, account.allocated - bound)
    if over <= 0:
        return 0
    return min(everything, -(-over // WHOLE_GPU) - 1 + max(loses.values()))
