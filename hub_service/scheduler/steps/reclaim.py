"""Taking back: which waiting units may try, along which ways, and what that stopped (R1 to R6).

Knows the order of claimants and of the ways (surplus first, other projects, the own one), and
for whom each worker was stopped. How one set of victims is found is `search`'s. Called by `cycle`
after everything idle has been handed out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import cap_in_the_way
from runai.hub_service.scheduler.state.equivalence import Lane, Unit
from runai.hub_service.scheduler.state.planned_workloads import ACTIVE, Item, Member, Standing
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import Account
from runai.hub_service.scheduler.state.request_shape import Kind
from runai.hub_service.scheduler.state.victim_order import Victim, VictimsView
from runai.hub_service.scheduler.steps.allocate import HELD, Allocation
from runai.hub_service.scheduler.steps.reclaim_bounds import Bounds
from runai.hub_service.scheduler.steps.victim_search import Search
from runai.hub_service.scheduler.steps.victim_selection import Choice, Way

_NODES_TRIED = 32
"""A claim for one worker looks at so many nodes one by one before it gives up, not proven."""

_TIMES = (1, 2, 4)
"""A gang's claim looks at so many times the nodes that it needs, after all of them at once."""

_PASSES = 3


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
        """Take nothing yet."""
        self._state = state
        self._allocation = allocation
        self._victims: VictimsView
        self._counted: Bounds | None = None
        self._surplus_only: bool
        self._lane: Lane | None = None
        """Who was served last, by the search that the next of the lane may go on with."""
        self._search: Search | None = None
        self.took_something = False
        """Whether anybody lost devices or a reservation."""
        self.losses: dict[Member, Loss] = {}
        self.over_share: set[Lane] = set()
        """Claimants whose project would exceed its fair share."""
        self.not_proven: set[Lane] = set()
        """Claimants whose search gave up before it had looked everywhere."""
        self.protected: dict[Lane, int] = {}
        """Claimants that met protected victims, and when the first may be taken (R8)."""
        self.exhausted: set[Lane] = set()
        """Claimants that would stop more than is left of what one plan may stop (R8)."""

    @property
    def _bounds(self) -> Bounds:
        """Give what nodes could give at most, as things are."""
        if self._counted is None:
            self._counted = Bounds(self._state)
        return self._counted

    @property
    def stopped(self) -> list[Unit]:
        """Give what was stopped by this pass as units that may be placed elsewhere."""
        units: dict[tuple[Item, Member | None], list[Member]] = {}
        is_full = not self._state.later.free_milli
        for member, loss in self.losses.items():
            if is_full and member.kind.devices:
                continue
            # Q5: a preemptible session ends; there is nothing to move.
            is_job = member.item.workload.kind == "job"
            if loss.is_surplus and member.item.sizes is not None:
                continue  # E2: its worker goes on without it, on its node
            if member.standing is Standing.GOING and is_job and loss.claimant:
                alone = member if loss.is_surplus else None
                units.setdefault((member.item, alone), []).append(member)
        return [
            Unit(item, tuple(members), is_surplus=alone is not None)
            for (item, alone), members in units.items()
        ]

    @property
    def may_stop(self) -> int | None:
        """Give how many workers this plan may still stop or move; None is any number (R8)."""
        most = self._state.policy.max_evictions
        return None if most is None else most - len(self.losses)

    def shrink(self) -> None:
        """Take back surplus alone, where somebody may move next: that costs less (R6)."""
        if self._state.policy.shrink_first:
            self.take_back(surplus_only=True)

    def take_back(self, *, surplus_only: bool = False) -> None:
        """Let every waiting minimum try, the most deprived project first.

        One search for each kind of claim: who asks for the same as one that failed fails as well.
        Whoever took something may have made others' claims good: they try once more (R8).
        """
        self._surplus_only = surplus_only
        for _ in range(_PASSES):
            before = len(self.losses)
            if self._serves_all() or len(self.losses) == before:
                break

    def _serves_all(self) -> bool:
        """Let everybody try once; tell whether nobody waits any more."""
        state, allocation = self._state, self._allocation
        self._counted = None
        self._lane = self._search = None
        self._victims = state.victims.view({**dict.fromkeys(state.changed()), **state.reserved})
        unkept = [unit for unit in allocation.unkept_units() if not unit.is_surplus]
        order = FairOrder(state, unkept, surplus=False)
        is_all = True
        while (unit := order.pop()) is not None:
            if unit.falls_short():
                continue
            with allocation.holds.open_to(unit):
                is_served = self._serve(unit, state.lanes.lane_of(unit))
            if is_served:
                allocation.placed += unit.members
            else:
                order.set_aside()
                is_all = False
        return is_all

    def stop_stale_gangs(self) -> None:
        """Stop gangs whole that have run below their minimum for longer than their grace (R11)."""
        state = self._state
        for item in sorted(state.broken, key=lambda item: item.age):
            since = item.workload.below_min_since
            active = [m for m in item.members if m.standing in ACTIVE]
            if (
                since is not None
                and state.time - since > item.workload.grace
                and active
                and not item.has_minimum()
                and item.workload.kind == "job"
            ):
                self.took_something = True
                for member in active:
                    if member.standing is Standing.RUNNING:
                        self.losses[member] = Loss(None, "R11", item.account, is_surplus=False)
                    state.release(member)

    def _ways(self, unit: Unit, lane: Lane) -> Iterator[Way]:
        policy, account, item = self._state.policy, unit.item.account, unit.item
        others = "reclaim" in policy.phases
        over = account.allocated + unit.demand - account.fair_share
        if others and over > 0:
            self.over_share.add(lane)
        lower, lent = False, list[Kind]()
        if "preempt" in policy.phases:
            mine = _first_to_go(self._victims.of(account, surplus_only=False))
            mine += [known.victim for known in self._victims.protected(account)[-1:]]
            # The lowest priority stands last (R1); surplus gives way to any minimum (E1).
            lower = any(item.is_fixed or v.item.rank < item.rank for v in mine)
            surplus = self._victims.of(account, surplus_only=True)
            lent = [victim.member.kind for victim in surplus if victim.is_lent]
        own = lower or (bool(lent) and self._could_do(unit, lent))
        has_surplus = policy.shrink_first and self._victims.has_surplus
        kinds = (True, False) if has_surplus else (False,)
        for surplus_only in kinds[:-1] if self._surplus_only else kinds:
            if others and over <= 0:
                yield Way(others=True, own=False, surplus_only=surplus_only)
            # What is only lent was asked for already where surplus came first (R6).
            if own and (lower or surplus_only or not has_surplus):
                yield Way(others=False, own=True, surplus_only=surplus_only, lent=bool(lent))
            # Own surplus would come back to what is idle at once: giving it up makes no claim
            # on others good, or two projects take from each other in turn (R8).
            if others and lower:
                yield Way(others=True, own=True, surplus_only=surplus_only)

    def _could_do(self, unit: Unit, lent: list[Kind]) -> bool:
        """Tell by counting whether what its project only lent could make room for one worker."""
        kind = unit.members[0].kind
        idle = max(self._state.later.idle)
        return not kind.is_whole or idle + sum(each.devices for each in lent) >= kind.devices

    def _serve(self, unit: Unit, lane: Lane) -> bool:
        if any(not member.kind.nodes for member in unit.members):
            return False
        block = cap_in_the_way(unit.item, unit.demand)
        if block is not None and block.code == "over_build_quota":
            return False  # only preemptible work can be taken, which that cap does not count
        if lane is self._lane and self._search and self._search.go_on(unit, self.may_stop):
            self._record(unit, self._search)
            return True
        self._lane = self._search = None
        has_taken = False
        for way in self._ways(unit, lane):
            is_first = True
            for choice in self._choices(unit, lane, way):
                search = Search(self._state, unit, way, choice, may_stop=self.may_stop)
                if search.run():
                    self._record(unit, search)
                    if not has_taken:
                        # Ways before this one have nobody for the next in the lane either.
                        self._lane, self._search = lane, search
                    return True
                self._remember(lane, search)
                has_taken = has_taken or bool(search.taken)
                if is_first and not search.taken:
                    break  # nobody may be taken anywhere
                is_first = False
        return False

    def _choices(self, unit: Unit, lane: Lane, way: Way) -> Iterator[Choice]:
        """Give the victims to choose from: all of them, then those of a few nodes at a time.

        Who is over may give so much and no more: taken in R4's order alone it may come from
        nodes where it helps nobody. On no more nodes than it needs, it is enough or it is not.
        That chooses by place and not by R4, so whoever is there may have run for long: beyond its
        quota a claim takes that way only from those who have saved their work (ADR 0018).
        """
        if self._victims.has_surplus and not self._could_help(unit, way):
            return  # there is much to take in vain
        protected = None if way.surplus_only else self._victims.protected
        yield Choice(partial(self._victims.of, surplus_only=way.surplus_only), None, protected)
        if way.surplus_only:
            return
        account, on_node = unit.item.account, self._state.on_node
        is_owed = not way.others or account.allocated + unit.demand <= account.quota
        for nodes in self._node_sets(unit, lane, way):
            members = [member for node in nodes for member in on_node[node]]
            if not is_owed:
                members = [m for m in members if m.item.workload.checkpointed is not None]
            there = self._victims.on(members)
            if there:
                among = {above for account in there for above in account.path}
                yield Choice(there.__getitem__, among)

    def _could_help(self, unit: Unit, way: Way) -> bool:
        """Tell whether there is a node where one of its workers could ever have room."""
        state, kind = self._state, unit.members[0].kind
        if kind.devices <= 1 or state.later.find(kind) is not None:
            return True  # to search is quicker; or something else is in the way
        if state.protects and state.policy.explain != "none":
            return True  # until when others are protected (R8), only a search can tell
        return self._bounds.is_anybody_over(unit, way) and any(
            node in kind.nodes and self._bounds.could_suffice([node], unit, way)
            for node in self._emptiest_first
        )

    def _node_sets(self, unit: Unit, lane: Lane, way: Way) -> Iterator[list[int]]:
        """Give the nodes to look at: one after another, for a gang ever more at once."""
        state, kind = self._state, unit.members[0].kind
        if any(member.kind is not kind for member in unit.members):
            return
        roomy = (
            node
            for node in self._emptiest_first
            if node in kind.nodes and self._bounds.could_suffice([node], unit, way)
        )
        if len(unit.members) == 1:
            for tried, node in enumerate(roomy):
                if tried == _NODES_TRIED:
                    self.not_proven.add(lane)
                    return
                yield [node]
            return
        # Where only a cap is in the way nothing is lacking.
        lacking = max(1, len(unit.members) - sum(state.later.roomy(kind).values()))
        full = (node for node in roomy if not state.later.slots(node, kind))
        nodes = list(islice(full, max(_TIMES) * lacking))
        for times in _TIMES:
            chosen = nodes[: times * lacking]
            if self._bounds.could_suffice(chosen, unit, way, lacking):
                yield chosen
            if len(chosen) == len(nodes):
                return

    @cached_property
    def _emptiest_first(self) -> list[int]:
        """Order the nodes where anybody is, once for a pass: those that need least come first."""
        on_node = self._state.on_node
        nodes = [node for node in range(len(self._state.nodes)) if on_node.get(node)]
        return sorted(nodes, key=self._state.later.fullness, reverse=True)

    def _record(self, unit: Unit, search: Search) -> None:
        self._counted = None  # somebody has come, or gone
        self.took_something = self.took_something or bool(search.taken)
        for taken in search.taken:
            for member, standing in zip(taken.members, taken.standings, strict=True):
                if standing is Standing.RUNNING:
                    self.losses[member] = Loss(
                        unit.item,
                        taken.giver.rule,
                        taken.giver.account,
                        is_surplus=taken.is_surplus,
                    )

    def _remember(self, lane: Lane, search: Search) -> None:
        if search.is_held:
            self._allocation.blocks[lane] = HELD
        if search.givers.exceeds_share:
            self.over_share.add(lane)
        if search.stops_too_many:
            self.exhausted.add(lane)
        until = search.givers.protected_until()
        if until is not None:
            self.protected[lane] = until


def _first_to_go(victims: Sequence[Victim]) -> list[Victim]:
    """Give the last of what is beyond a request (E2), and the last of the others: each its lowest.

    The former stands behind the latter, whatever its priority (R4).
    """
    begins = bisect_left(victims, True, key=attrgetter("is_extra"))
    return [*victims[:begins][-1:], *victims[begins:][-1:]]
