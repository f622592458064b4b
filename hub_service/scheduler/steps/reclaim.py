"""Reclaim and preemption: the order of claimants and scopes, and the losses (R1 to R6).

Scopes are tried in order: surplus first, then other projects, then the claimant's own project. It
runs after all idle capacity is allocated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import cap_in_the_way, quota_path
from runai.hub_service.scheduler.state.equivalence import EquivalenceClass, PodSet
from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.planned_workloads import (
    ACTIVE,
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import Age, ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape
from runai.hub_service.scheduler.state.victim_order import Victim, VictimsView
from runai.hub_service.scheduler.steps.allocate import HELD, AllocateStep
from runai.hub_service.scheduler.steps.quota_choice import serve_elsewhere
from runai.hub_service.scheduler.steps.reclaim_bounds import Bounds
from runai.hub_service.scheduler.steps.victim_search import Moves, VictimSearch
from runai.hub_service.scheduler.steps.victim_selection import CandidateSet, PreemptionScope

_NODES_TRIED = 32
"""Maximum number of nodes tried one by one for a single worker; then "not proven"."""

_TIMES = (1, 2, 4)
"""Multiples of the needed nodes that a gang tries, after all victims at once."""

_PASSES = 3


class Eviction(NamedTuple):
    """Reason why a worker was stopped."""

    claimant: PlannedWorkload | None
    """The workload that benefits; None for a stale gang (R11)."""
    rule: str
    giver: ProjectNode
    """The project over its entitlement, at R2's level; the own one for a preemption."""
    is_surplus: bool


class Reclaim:
    """One pass of reclaim and preemption, with the stopped workers and their claimants."""

    def __init__(self, state: State, allocation: AllocateStep) -> None:
        """Start without losses."""
        self._state = state
        self._allocation = allocation
        self._victims: VictimsView
        self._counted: Bounds | None = None
        self._surplus_only: bool
        self._lane: EquivalenceClass | None = None
        """Lane last served; `_search` can continue with the lane's next unit."""
        self._search: VictimSearch | None = None
        self.is_stale = True
        """True if the state changed since the victims were listed."""
        self.took_something = False
        """True if a victim lost devices or a reservation."""
        self.losses: dict[PlannedWorker, Eviction] = {}
        self.over_share: set[EquivalenceClass] = set()
        """Claimants that would raise their project above its fair share."""
        self.not_proven: set[EquivalenceClass] = set()
        """Claimants with a search that stopped before it had examined all nodes."""
        self.protected: dict[EquivalenceClass, int] = {}
        """Claimants with protected victims, and when the first protection ends (R8)."""
        self.exhausted: set[EquivalenceClass] = set()
        """Claimants that would exceed the number of workers that one plan may stop (R8)."""

    @property
    def _bounds(self) -> Bounds:
        """Return the upper bounds of reclaimable capacity in the current state."""
        if self._counted is None:
            self._counted = Bounds(self._state)
        return self._counted

    @property
    def stopped(self) -> list[PodSet]:
        """Return the workers stopped by this pass, as units that may be placed elsewhere."""
        units: dict[tuple[PlannedWorkload, PlannedWorker | None], list[PlannedWorker]] = {}
        is_full = not self._state.later.free_milli
        for member, loss in self.losses.items():
            if is_full and member.kind.devices:
                continue
            # Q5: a preemptible session ends, so it cannot move.
            is_job = member.item.workload.kind == "job"
            if loss.is_surplus and member.item.sizes is not None:
                continue  # E2: its worker continues on its node without this part
            if member.standing is Phase.GOING and is_job and loss.claimant:
                alone = member if loss.is_surplus else None
                units.setdefault((member.item, alone), []).append(member)
        return [
            PodSet(item, tuple(members), is_surplus=alone is not None)
            for (item, alone), members in units.items()
        ]

    @property
    def may_stop(self) -> int | None:
        """Return how many more workers this plan may stop or move. None is no limit (R8)."""
        most = self._state.policy.max_evictions
        return None if most is None else most - len(self.losses)

    def shrink(self) -> None:
        """Reclaim surplus alone, before any consolidation, because that costs less (R6)."""
        if self._state.policy.shrink_first:
            self.reclaim(surplus_only=True)

    def reclaim(self, *, surplus_only: bool = False) -> None:
        """Try every waiting minimum, the most deprived project first.

        Equal claims share one search: if it fails for one, it fails for all. A successful claim may
        make other claims possible, so failed ones are tried again (R8).
        """
        self._surplus_only = surplus_only
        for _ in range(_PASSES):
            before = len(self.losses)
            if self._serve_all() or len(self.losses) == before:
                break

    def _serve_all(self) -> bool:
        """Try all waiting units once; return True if none waits any more."""
        state, allocation = self._state, self._allocation
        self._begin_pass()
        unkept = [unit for unit in allocation.unkept_units() if not unit.is_surplus]
        order = FairOrder(state, unkept, surplus=False)
        is_all = True
        while (unit := order.pop()) is not None:
            if not unit.falls_short() and not self._try(unit):
                order.set_aside()
                is_all = False
        if not is_all and state.undecided:
            serve_elsewhere(state, lambda unit: not unit.falls_short() and self._try(unit))
        return is_all

    def _try(self, unit: PodSet) -> bool:
        with self._allocation.holds.open_to(unit):
            is_served = self._serve(unit, self._state.lanes.lane_of(unit))
        if is_served:
            self._allocation.placed += unit.members
        return is_served

    def _begin_pass(self) -> None:
        state = self._state
        self._counted = None
        self._lane = self._search = None
        changed = {**dict.fromkeys(state.changed()), **state.reserved}
        self._victims = state.victims.view(changed, state.time)
        self._without_gpu: list[Victim] | None = None
        self.is_stale = False

    def searches(
        self, unit: PodSet, *, moves: Moves | None = None, for_cpu: bool = False
    ) -> Iterator[VictimSearch]:
        """Yield searches for a claim within its quota that R1 and R2 alone do not serve.

        They may also move workers (R10), or take workloads that hold the CPU that it lacks (Q6).
        """
        if self.is_stale:
            self._begin_pass()
        more: list[Victim] = []
        if for_cpu:
            more = [*self._jobs_without_gpu(unit), *self._beyond_their_part(unit)]
            if not more:
                return
            yield self._search_for_cpu(unit, more, PreemptionScope(others=False, own=False))
        for way in self._ways(unit, self._state.lanes.lane_of(unit)):
            if not way.surplus_only:
                listed = partial(self._victims.of, surplus_only=False)
                choice = CandidateSet(listed, None, self._victims.protected, more)
                yield VictimSearch(self._state, unit, way, choice, self.may_stop, moves)

    # ---- Q6

    def _search_for_cpu(
        self, unit: PodSet, victims: Sequence[Victim], way: PreemptionScope
    ) -> VictimSearch:
        listed = partial(self._victims.of, surplus_only=False)
        choice = CandidateSet(listed, None, self._victims.protected, victims)
        return VictimSearch(self._state, unit, way, choice, self.may_stop)

    def _serve_without_gpu(self, unit: PodSet) -> bool:
        """Serve a claim within its quota by stopping workloads without a GPU, if they suffice.

        It lacks CPU or memory, and no GPU.
        """
        if self._surplus_only or "reclaim" not in self._state.policy.phases:
            return False
        if not unit.demand or not any(m.kind.cpu or m.kind.memory for m in unit.members):
            return False
        if any(a.allocated + unit.demand > a.quota for a in quota_path(unit.item)):
            return False
        victims = self._jobs_without_gpu(unit)
        if not victims:
            return False
        search = self._search_for_cpu(unit, victims, PreemptionScope(others=False, own=False))
        if not search.run():
            return False
        self.record(unit, search)
        return True

    def _jobs_without_gpu(self, unit: PodSet) -> list[Victim]:
        """Return the workloads without a GPU that a claim may stop, the latest first."""
        if self._without_gpu is None:
            accounts = {
                item.account: None
                for item in self._state.by_name.values()
                if not any(member.kind.devices for member in item.members)
            }
            self._without_gpu = [
                victim
                for account in accounts
                for victim in self._victims.of(account, surplus_only=False)
                if not any(member.kind.devices for member in victim.item.members)
            ]
            self._without_gpu.sort(key=_latest, reverse=True)
        return [victim for victim in self._without_gpu if _may_lose_cpu(victim, unit.item)]

    def _beyond_their_part(self, unit: PodSet) -> list[Victim]:
        """Return the workloads that hold more than their GPUs' part of a node, the latest first.

        Of nodes where the claim lacks CPU or memory, and asks for no more than its own part.
        """
        room, on_node = self._state.later, self._state.on_node
        found: dict[Victim, None] = {}
        for kind in {member.kind: None for member in unit.members}:
            if not (kind.cpu or kind.memory):
                continue
            for node in sorted(kind.nodes):
                if room.has_base(node, kind):
                    continue
                holders = [
                    member
                    for member in on_node.get(node, ())
                    if member.booking is not None and _exceeds_gpu_part(room, member.booking, kind)
                ]
                for victims in self._victims.on(holders).values():
                    found |= dict.fromkeys(v for v in victims if _may_lose_cpu(v, unit.item))
        return sorted(found, key=_latest, reverse=True)

    # ---- R11

    def stop_stale_gangs(self) -> None:
        """Stop gangs that were below their minimum for longer than their grace period (R11)."""
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
                    if member.standing is Phase.RUNNING:
                        self.losses[member] = Eviction(None, "R11", item.account, is_surplus=False)
                    state.release(member)

    def _ways(self, unit: PodSet, lane: EquivalenceClass) -> Iterator[PreemptionScope]:
        policy, account, item = self._state.policy, unit.item.account, unit.item
        # Quotas promise GPUs. Preemptible work without one that took CPU from a project beyond its
        # quota would be a victim of that project's next claim, and take it again.
        has_claim = item.is_fixed or any(member.kind.devices for member in unit.members)
        others = "reclaim" in policy.phases and has_claim
        over = account.allocated + unit.demand - account.fair_share
        if others and over > 0:
            self.over_share.add(lane)
        lower, lent = False, list[RequestShape]()
        if "preempt" in policy.phases:
            mine = _lowest_victims(self._victims.of(account, surplus_only=False))
            mine += [known.victim for known in self._victims.protected(account)[-1:]]
            # The lowest priority is last in the list (R1); surplus yields to any minimum (E1).
            lower = any(item.is_fixed or v.item.rank < item.rank for v in mine)
            surplus = self._victims.of(account, surplus_only=True)
            lent = [victim.member.kind for victim in surplus if victim.is_lent]
        own = lower or (bool(lent) and self._could_make_room(unit, lent))
        has_surplus = policy.shrink_first and self._victims.has_surplus
        kinds = (True, False) if has_surplus else (False,)
        for surplus_only in kinds[:-1] if self._surplus_only else kinds:
            if others and over <= 0:
                yield PreemptionScope(others=True, own=False, surplus_only=surplus_only)
            # Surplus came first (R6), so the own surplus was tried already.
            if own and (lower or surplus_only or not has_surplus):
                yield PreemptionScope(
                    others=False, own=True, surplus_only=surplus_only, lent=bool(lent)
                )
            # Stopped own surplus would start again on idle GPUs at once. It justifies no claim on
            # other projects: two projects would otherwise reclaim from each other in turn (R8).
            if others and lower:
                yield PreemptionScope(others=True, own=True, surplus_only=surplus_only)

    def _could_make_room(self, unit: PodSet, lent: list[RequestShape]) -> bool:
        """Return True if the project's own surplus could make room for one worker, by counting."""
        kind = unit.members[0].kind
        idle = max(self._state.later.idle)
        return not kind.is_whole or idle + sum(each.devices for each in lent) >= kind.devices

    def _serve(self, unit: PodSet, lane: EquivalenceClass) -> bool:
        if any(not member.kind.nodes for member in unit.members):
            return False
        block = cap_in_the_way(unit)
        if block is not None and block.code == "over_build_quota":
            return False  # only preemptible work can go, which the cap excludes
        if self._serve_without_gpu(unit):
            return True
        if lane is self._lane and self._search and self._search.resume(unit, self.may_stop):
            self.record(unit, self._search)
            return True
        self._lane = self._search = None
        has_taken = False
        for way in self._ways(unit, lane):
            is_first = True
            for choice in self._choices(unit, lane, way):
                search = VictimSearch(self._state, unit, way, choice, may_stop=self.may_stop)
                if search.run():
                    self.record(unit, search)
                    if not has_taken:
                        # The scopes before this one have no victims for the lane's next unit
                        # either.
                        self._lane, self._search = lane, search
                    return True
                self._record_failure(lane, search)
                has_taken = has_taken or bool(search.taken)
                if is_first and not search.taken:
                    break  # no victim is available on any node
                is_first = False
        return False

    def _choices(
        self, unit: PodSet, lane: EquivalenceClass, way: PreemptionScope
    ) -> Iterator[CandidateSet]:
        """Yield sets of victims to choose from: all, then the ones on a few nodes.

        A project over its entitlement yields only that much. Victims in R4's order alone may leave
        nodes where the claimant does not fit; victims on just the needed nodes either suffice or
        not. That selection ignores R4, and may stop a workload that has run for long. A claim
        beyond its quota therefore takes only workloads that save their work this way (ADR 0018).
        """
        if self._victims.has_surplus and not self._could_help(unit, way):
            return  # a long search could not succeed
        protected = None if way.surplus_only else self._victims.protected
        yield CandidateSet(
            partial(self._victims.of, surplus_only=way.surplus_only), None, protected
        )
        if way.surplus_only:
            return
        account, on_node = unit.item.account, self._state.on_node
        is_owed = not way.others or account.allocated + unit.demand <= account.quota
        for nodes in self._node_sets(unit, lane, way):
            members = [member for node in nodes for member in on_node[node]]
            if not is_owed:
                members = [m for m in members if m.item.workload.saves]
            there = self._victims.on(members)
            if there:
                among = {above for account in there for above in account.path}
                yield CandidateSet(there.__getitem__, among)

    def _could_help(self, unit: PodSet, way: PreemptionScope) -> bool:
        """Return True if a node exists where one of its workers could have room."""
        state, kind = self._state, unit.members[0].kind
        if kind.devices <= 1 or state.later.find(kind) is not None:
            return (
                True  # a search is cheaper than this check, or something other than devices lacks
            )
        if state.protects and state.policy.explain != "none":
            return True  # only a search finds the end of a protection (R8)
        return self._bounds.is_anybody_over(unit, way) and any(
            node in kind.nodes and self._bounds.could_suffice([node], unit, way)
            for node in self._emptiest_first
        )

    def _node_sets(
        self, unit: PodSet, lane: EquivalenceClass, way: PreemptionScope
    ) -> Iterator[list[int]]:
        """Yield the nodes to try: one by one, or for a gang a growing number."""
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
        # If only a cap blocks the unit, no node lacks capacity.
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
        """Nodes with workers, emptiest first, because they need the fewest victims; sorted once."""
        on_node = self._state.on_node
        nodes = [node for node in range(len(self._state.nodes)) if on_node.get(node)]
        return sorted(nodes, key=self._state.later.fullness, reverse=True)

    def record(self, unit: PodSet, search: VictimSearch) -> None:
        """Record the victims of a successful search, and their claimant."""
        self.is_stale = True
        self._counted = None  # workers came or went
        self.took_something = self.took_something or bool(search.taken)
        for taken in search.taken:
            for member, standing in zip(taken.members, taken.standings, strict=True):
                if standing is Phase.RUNNING:
                    self.losses[member] = Eviction(
                        unit.item,
                        taken.giver.rule,
                        taken.giver.account,
                        is_surplus=taken.is_surplus,
                    )

    def forget(self, search: VictimSearch) -> None:
        """Forget the victims of a search whose result is not used after all."""
        for taken in search.taken:
            for member in taken.members:
                self.losses.pop(member, None)

    def _record_failure(self, lane: EquivalenceClass, search: VictimSearch) -> None:
        if search.is_held:
            self._allocation.blocks[lane] = HELD
        if search.givers.exceeds_share:
            self.over_share.add(lane)
        if search.stops_too_many:
            self.exhausted.add(lane)
        until = search.givers.protected_until()
        if until is not None:
            self.protected[lane] = until


def _latest(victim: Victim) -> tuple[Age, int]:
    return victim.item.age, victim.member.index


def _may_lose_cpu(victim: Victim, claimant: PlannedWorkload) -> bool:
    """Return True if a claim may take a workload for its CPU, which must not take it back (Q6)."""
    item = victim.item
    if victim.is_guaranteed or item is claimant:
        return False
    goes_first = item.account is claimant.account and item.rank > claimant.rank  # R1
    return claimant.is_fixed or not goes_first


def _exceeds_gpu_part(room: Room, booking: Booking, claim: RequestShape) -> bool:
    """Return True if a worker holds more than its GPUs' part of a node, and a claim does not (Q6).

    It must hold too much of something that the claim lacks there. Broken devices have no part.
    """
    node = booking.node
    there = room.nodes[node]
    whole = (there.devices - len(there.broken_devices)) * WHOLE_GPU
    held, asked = booking.shares * len(booking.devices), claim.milli * claim.devices
    excess = False
    for total, free, holds, asks in (
        (there.cpu_milli, room.cpu[node], booking.cpu, claim.cpu),
        (there.memory_mib, room.memory[node], booking.memory, claim.memory),
    ):
        if total is None:
            continue
        if asks * whole > total * asked:
            return False
        excess = excess or (free < asks and holds * whole > total * held)
    return excess


def _lowest_victims(victims: Sequence[Victim]) -> list[Victim]:
    """Return the lowest-priority victim beyond its request (E2), and that of the rest.

    The former is last in R4's order, whatever its priority, so the lowest of all may be either.
    """
    begins = bisect_left(victims, True, key=attrgetter("is_extra"))
    return [*victims[:begins][-1:], *victims[begins:][-1:]]
