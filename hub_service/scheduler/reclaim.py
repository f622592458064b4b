"""Taking back: which waiting units may try, along which ways, and what that stopped (R1 to R6).

Knows the order of claimants and of the ways (surplus first, other projects, the own one), and
for whom each worker was stopped. How one set of victims is found is `search`'s. Called by `cycle`
after everything idle has been handed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from runai.hub_service.scheduler.allocate import HELD, Allocation
from runai.hub_service.scheduler.order import FairOrder, Unit, pending_units
from runai.hub_service.scheduler.quotas import cap_in_the_way
from runai.hub_service.scheduler.search import ACTIVE, Search, Victim, Way, victims_of
from runai.hub_service.scheduler.state import Item, Member, Standing, State
from runai.hub_service.scheduler.tree import Account

_NODES_TRIED = 32
"""A claim for one worker looks at so many nodes one by one before it gives up, not proven."""


class Loss(NamedTuple):
    """Why a worker was stopped."""

    claimant: Item | None
    """Who gains; nobody where a stale gang is stopped (R11)."""
    rule: str
    giver: Account
    """The project, at R2's level, that was over; the own one for a preemption."""
    is_surplus: bool


class Reclaim:
    """One pass of taking back; keeps what was stopped and for whom."""

    def __init__(self, state: State, allocation: Allocation) -> None:
        """Sort the victims of every project once."""
        self._state = state
        self._allocation = allocation
        self._victims: dict[Account, list[Victim]] = {}
        self._surplus: dict[Account, list[Victim]] = {}
        self._by_node: dict[int, dict[Account, list[Victim]]] | None = None
        self._hopeless: dict[tuple[object, ...], Item] = {}
        """The first that failed of each kind of claim: its like need not search again."""
        self.took_something = False
        """Whether anybody lost devices or a reservation."""
        self.losses: dict[Member, Loss] = {}
        self.over_share: set[Item] = set()
        """Claimants whose project would exceed its fair share."""
        self.not_proven: set[Item] = set()
        """Claimants whose search gave up before it had looked everywhere."""
        self.protected: dict[Item, int] = {}
        """Claimants that met protected victims, and when the first may be taken (R8)."""

    @property
    def stopped(self) -> list[Unit]:
        """Give what was stopped by this pass as units that may be placed elsewhere."""
        units: dict[tuple[Item, int], list[Member]] = {}
        for member, loss in self.losses.items():
            # Q5: a preemptible session ends; there is nothing to move.
            is_job = member.item.workload.kind == "job"
            if member.standing is Standing.GOING and is_job and loss.claimant:
                index = member.index if loss.is_surplus else -1
                units.setdefault((member.item, index), []).append(member)
        return [
            Unit(item, tuple(members), is_surplus=index >= 0)
            for (item, index), members in units.items()
        ]

    def take_back(self) -> None:
        """Let every waiting minimum try, the most deprived project first."""
        state = self._state
        for item in state.items:
            for victim in victims_of(item):
                self._victims.setdefault(item.account, []).append(victim)
        for account, victims in self._victims.items():
            victims.sort(key=lambda victim: victim.key)
            surplus = [victim for victim in victims if victim.is_surplus]
            if surplus:
                self._surplus[account] = surplus
        units = [unit for item in state.items for unit in pending_units(item)]
        order = FairOrder(state, [unit for unit in units if not unit.is_surplus])
        while (unit := order.pop()) is not None:
            if self._serve(unit):
                self._allocation.placed += unit.members
                self._allocation.blocks.pop(unit.item, None)

    def stop_stale_gangs(self) -> None:
        """Stop gangs whole that have run below their minimum for longer than their grace (R11)."""
        state = self._state
        for item in state.items:
            since = item.workload.below_min_since
            active = [m for m in item.members if m.standing is Standing.RUNNING]
            if (
                since is not None
                and state.snapshot.now - since > item.workload.grace
                and active
                and item.count(*ACTIVE) < item.minimum
                and item.workload.kind == "job"
            ):
                self.took_something = True
                for member in active:
                    state.release(member)
                    self.losses[member] = Loss(None, "R11", item.account, is_surplus=False)

    def _ways(self) -> Iterator[Way]:
        policy = self._state.snapshot.policy
        others, own = "reclaim" in policy.phases, "preempt" in policy.phases
        for surplus_only in (True, False) if policy.shrink_first and self._surplus else (False,):
            if others:
                yield Way(others=True, own=False, surplus_only=surplus_only)
            if own:
                yield Way(others=False, own=True, surplus_only=surplus_only)
            if others and own:
                yield Way(others=True, own=True, surplus_only=surplus_only)

    def _serve(self, unit: Unit) -> bool:
        item = unit.item
        if any(not member.kind.nodes for member in unit.members):
            return False
        block = cap_in_the_way(item, unit.demand)
        if block is not None and block.code == "over_build_quota":
            return False  # only preemptible work can be taken, which that cap does not count
        signature = (item.account, item.is_fixed, item.rank, unit.signature)
        like = self._hopeless.setdefault(signature, item)
        if like is not item:
            self._fails_like(item, like)
            return False
        for way in self._ways():
            for victims in self._choices(unit, way):
                search = Search(self._state, unit, way, victims)
                if search.run():
                    self._record(unit, search)
                    del self._hopeless[signature]
                    return True
                self._remember(unit, search)
                if not search.taken and victims is self._victims:
                    break  # nobody may be taken anywhere
        return False

    def _choices(self, unit: Unit, way: Way) -> Iterator[Mapping[Account, list[Victim]]]:
        """Give the victims to choose from: all of them, then those of one node after another.

        Who is over may give so much and no more: taken in R4's order alone it may come from
        nodes where it helps nobody. One node at a time, it is enough or it is not.
        """
        yield self._surplus if way.surplus_only else self._victims
        member, *others = unit.members
        if others or way.surplus_only:
            return
        kind, room = member.kind, self._state.later
        by_node = self._victims_by_node()
        nodes = sorted(kind.nodes & by_node.keys(), key=room.fullness, reverse=True)
        for node in nodes[:_NODES_TRIED]:
            yield by_node[node]
        if len(nodes) > _NODES_TRIED:
            self.not_proven.add(unit.item)

    def _victims_by_node(self) -> dict[int, dict[Account, list[Victim]]]:
        if self._by_node is None:
            self._by_node = {}
            for account, victims in self._victims.items():
                for victim in victims:
                    for node in victim.nodes():
                        there = self._by_node.setdefault(node, {})
                        there.setdefault(account, []).append(victim)
        return self._by_node

    def _fails_like(self, item: Item, like: Item) -> None:
        blocks = self._allocation.blocks
        if blocks.get(like) is HELD:
            blocks[item] = HELD
        if like in self.not_proven:
            self.not_proven.add(item)
        if like in self.over_share:
            self.over_share.add(item)
        if like in self.protected:
            self.protected[item] = self.protected[like]

    def _record(self, unit: Unit, search: Search) -> None:
        self.took_something = self.took_something or bool(search.taken)
        for taken in search.taken:
            for member, standing in zip(taken.members, taken.standings, strict=True):
                if standing is Standing.RUNNING:
                    self.losses[member] = Loss(
                        unit.item, taken.rule, taken.giver, is_surplus=taken.is_surplus
                    )

    def _remember(self, unit: Unit, search: Search) -> None:
        if search.is_held:
            self._allocation.blocks[unit.item] = HELD
        if search.exceeds_share:
            self.over_share.add(unit.item)
        if search.protected_until is not None:
            self.protected[unit.item] = search.protected_until
