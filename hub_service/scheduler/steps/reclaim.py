"""Reclaim and preemption: the order of claimants and scopes, and the evictions (R1 to R6).

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
from runai.hub_service.scheduler.placement.queue_order import QueueOrder
from runai.hub_service.scheduler.placement.quota_check import first_cap_exceeded, quota_path
from runai.hub_service.scheduler.state.equivalence_classes import EquivalenceClass, PodSet
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import (
    ACTIVE,
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import Age, ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape
from runai.hub_service.scheduler.state.victims import Victim, VictimsView
from runai.hub_service.scheduler.steps.allocate import BLOCKED_BY_NEVER_LENT, AllocateStep
from runai.hub_service.scheduler.steps.quota_choice import serve_by_other_charge
from runai.hub_service.scheduler.steps.reclaim_bounds import ReclaimBounds
from runai.hub_service.scheduler.steps.victim_iterator import CandidateSet, PreemptionScope
from runai.hub_service.scheduler.steps.victim_search import Moves, VictimSearch

_MAX_NODES_TRIED = 32
"""Maximum number of nodes tried one by one for a single worker; then "not proven"."""

_NODE_MULTIPLES = (1, 2, 4)
"""Multiples of the needed nodes that a gang tries, after all victims at once."""

_MAX_PASSES = 3


class Eviction(NamedTuple):
    """Reason why a worker was stopped."""

    claimant: PlannedWorkload | None
    """The workload that benefits; None for a stale gang (R11)."""
    rule: str
    victim_project: ProjectNode
    """The project over its entitlement, at R2's level; the own one for a preemption."""
    is_surplus: bool


class ReclaimStep:
    """One pass of reclaim and preemption, with the stopped workers and their claimants."""

    def __init__(self, state: PlanningState, allocation: AllocateStep) -> None:
        """Start without evictions."""
        self._state = state
        self._allocation = allocation
        self._victims: VictimsView
        self._cached_bounds: ReclaimBounds | None = None
        self._surplus_only: bool
        self._equivalence_class: EquivalenceClass | None = None
        """Class last served; `_search` can continue with the class's next pod set."""
        self._search: VictimSearch | None = None
        self.is_stale = True
        """True if the state changed since the victims were listed."""
        self.has_freed_devices = False
        """True if a victim lost devices or a reservation."""
        self.evictions: dict[PlannedWorker, Eviction] = {}
        self.over_share: set[EquivalenceClass] = set()
        """Claimants that would raise their project above its fair share."""
        self.not_proven: set[EquivalenceClass] = set()
        """Claimants with a search that stopped before it had examined all nodes."""
        self.protected: dict[EquivalenceClass, int] = {}
        """Claimants with protected victims, and when the first protection ends (R8)."""
        self.exhausted: set[EquivalenceClass] = set()
        """Claimants that would exceed the number of workers that one plan may stop (R8)."""

    @property
    def _bounds(self) -> ReclaimBounds:
        """Return the upper bounds of reclaimable capacity in the current state."""
        if self._cached_bounds is None:
            self._cached_bounds = ReclaimBounds(self._state)
        return self._cached_bounds

    @property
    def stopped_pod_sets(self) -> list[PodSet]:
        """Return the workers stopped by this pass, as pod sets that may be placed elsewhere."""
        pod_sets: dict[tuple[PlannedWorkload, PlannedWorker | None], list[PlannedWorker]] = {}
        is_full = not self._state.later.free_milli
        for member, eviction in self.evictions.items():
            if is_full and member.shape.devices:
                continue
            # Q5: a preemptible session ends, so it cannot move.
            is_job = member.planned.workload.kind == "job"
            if eviction.is_surplus and member.planned.sizes is not None:
                continue  # E2: its worker continues on its node without this part
            if member.phase is Phase.TERMINATING and is_job and eviction.claimant:
                alone = member if eviction.is_surplus else None
                pod_sets.setdefault((member.planned, alone), []).append(member)
        return [
            PodSet(planned, tuple(members), is_surplus=alone is not None)
            for (planned, alone), members in pod_sets.items()
        ]

    @property
    def stops_left(self) -> int | None:
        """Return how many more workers this plan may stop or move. None is no limit (R8)."""
        max_evictions = self._state.policy.max_evictions
        return None if max_evictions is None else max_evictions - len(self.evictions)

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
        for _ in range(_MAX_PASSES):
            before = len(self.evictions)
            if self._serve_all() or len(self.evictions) == before:
                break

    def _serve_all(self) -> bool:
        """Try all waiting pod sets once; return True if none waits any more."""
        state, allocation = self._state, self._allocation
        self._list_victims()
        unreserved = [s for s in allocation.unreserved_pod_sets() if not s.is_surplus]
        order = QueueOrder(state, unreserved, surplus=False)
        all_served = True
        while (pod_set := order.pop()) is not None:
            if not pod_set.falls_short() and not self._serve_and_record(pod_set):
                order.skip_class()
                all_served = False
        if not all_served and state.undecided:
            serve_by_other_charge(
                state, lambda pod_set: not pod_set.falls_short() and self._serve_and_record(pod_set)
            )
        return all_served

    def _serve_and_record(self, pod_set: PodSet) -> bool:
        """Find victims for a pod set; return True if it got a place."""
        with self._allocation.holds.open_to(pod_set):
            is_served = self._serve(pod_set, self._state.equivalence_classes.class_of(pod_set))
        if is_served:
            self._allocation.placed += pod_set.members
        return is_served

    def _list_victims(self) -> None:
        """List the victims of the current state, and forget what was found before."""
        state = self._state
        self._cached_bounds = None
        self._equivalence_class = self._search = None
        changed = {**dict.fromkeys(state.changed()), **state.reserved}
        self._victims = state.victims.view(changed, state.time)
        self._without_gpu: list[Victim] | None = None
        self.is_stale = False

    def searches(
        self, pod_set: PodSet, *, moves: Moves | None = None, for_cpu: bool = False
    ) -> Iterator[VictimSearch]:
        """Yield searches for a claim within its quota that R1 and R2 alone do not serve.

        They may also move workers (R10), or take workloads that hold the CPU that it lacks (Q6).
        """
        if self.is_stale:
            self._list_victims()
        extra_victims: list[Victim] = []
        if for_cpu:
            extra_victims = self._jobs_without_gpu(pod_set) + self._victims_beyond_gpu_part(pod_set)
            if not extra_victims:
                return
            yield self._search_for_cpu(pod_set, extra_victims)
        for scope in self._scopes(pod_set, self._state.equivalence_classes.class_of(pod_set)):
            if not scope.surplus_only:
                listed = partial(self._victims.of_project, surplus_only=False)
                candidates = CandidateSet(listed, None, self._victims.protected, extra_victims)
                yield VictimSearch(self._state, pod_set, scope, candidates, self.stops_left, moves)

    # ---- Q6

    def _search_for_cpu(self, pod_set: PodSet, victims: Sequence[Victim]) -> VictimSearch:
        """Return a search that takes these victims only."""
        listed = partial(self._victims.of_project, surplus_only=False)
        candidates = CandidateSet(listed, None, self._victims.protected, victims)
        scope = PreemptionScope(other_projects=False, own_project=False)
        return VictimSearch(self._state, pod_set, scope, candidates, self.stops_left)

    def _serve_without_gpu(self, pod_set: PodSet) -> bool:
        """Stop workloads without a GPU, if that suffices for a claim within its quota (Q6).

        The claim then lacked CPU or memory, and no GPU.
        """
        if self._surplus_only or "reclaim" not in self._state.policy.phases:
            return False
        if not pod_set.demand or not any(m.shape.cpu or m.shape.memory for m in pod_set.members):
            return False
        if any(a.allocated + pod_set.demand > a.quota for a in quota_path(pod_set.planned)):
            return False
        victims = self._jobs_without_gpu(pod_set)
        if not victims:
            return False
        search = self._search_for_cpu(pod_set, victims)
        if not search.run():
            return False
        self.record(pod_set, search)
        return True

    def _jobs_without_gpu(self, pod_set: PodSet) -> list[Victim]:
        """Return the workloads without a GPU that a claim may stop, the latest first."""
        if self._without_gpu is None:
            projects = {
                planned.project: None
                for planned in self._state.by_name.values()
                if not any(member.shape.devices for member in planned.members)
            }
            self._without_gpu = [
                victim
                for project in projects
                for victim in self._victims.of_project(project, surplus_only=False)
                if not any(member.shape.devices for member in victim.planned.members)
            ]
            self._without_gpu.sort(key=_age_and_index, reverse=True)
        return [victim for victim in self._without_gpu if _may_lose_cpu(victim, pod_set.planned)]

    def _victims_beyond_gpu_part(self, pod_set: PodSet) -> list[Victim]:
        """Return the workloads that hold more than their GPUs' part of a node, the latest first.

        Only nodes count where the claim lacks CPU or memory, within the part of its own GPUs.
        """
        capacity, on_node = self._state.later, self._state.on_node
        over_users: dict[Victim, None] = {}
        for shape in {member.shape: None for member in pod_set.members}:
            if not (shape.cpu or shape.memory):
                continue
            for node in sorted(shape.nodes):
                if capacity.has_base(node, shape):
                    continue
                holders = [
                    m
                    for m in on_node.get(node, ())
                    if m.booking is not None and _exceeds_gpu_part(capacity, m.booking, shape)
                ]
                for victims in self._victims.of_workers(holders).values():
                    over_users |= {v: None for v in victims if _may_lose_cpu(v, pod_set.planned)}
        return sorted(over_users, key=_age_and_index, reverse=True)

    # ---- R11

    def stop_stale_gangs(self) -> None:
        """Stop gangs that were below their minimum for longer than their grace period (R11)."""
        state = self._state
        for planned in sorted(state.broken, key=lambda planned: planned.age):
            since = planned.workload.below_min_since
            active = [m for m in planned.members if m.phase in ACTIVE]
            if (
                since is not None
                and state.time - since > planned.workload.grace
                and active
                and not planned.has_minimum()
                and planned.workload.kind == "job"
            ):
                self.has_freed_devices = True
                for member in active:
                    if member.phase is Phase.RUNNING:
                        eviction = Eviction(None, "R11", planned.project, is_surplus=False)
                        self.evictions[member] = eviction
                    state.release(member)

    def _scopes(self, pod_set: PodSet, equivalence: EquivalenceClass) -> Iterator[PreemptionScope]:
        """Yield the scopes to search in order; note in `over_share` a claim beyond its share."""
        policy, project, planned = self._state.policy, pod_set.planned.project, pod_set.planned
        # Quotas promise GPUs. Preemptible work without one that took CPU from a project beyond its
        # quota would be a victim of that project's next claim, and take it again.
        has_claim = planned.is_fixed or any(member.shape.devices for member in pod_set.members)
        may_reclaim = "reclaim" in policy.phases and has_claim
        over_share = project.allocated + pod_set.demand - project.fair_share
        if may_reclaim and over_share > 0:
            self.over_share.add(equivalence)
        has_lower, lent_shapes = False, list[RequestShape]()
        if "preempt" in policy.phases:
            own_victims = _lowest_victims(self._victims.of_project(project, surplus_only=False))
            own_victims += [known.victim for known in self._victims.protected(project)[-1:]]
            # The lowest priority is last in the list (R1); surplus yields to any minimum (E1).
            has_lower = any(planned.is_fixed or v.planned.rank < planned.rank for v in own_victims)
            surplus = self._victims.of_project(project, surplus_only=True)
            lent_shapes = [victim.member.shape for victim in surplus if victim.is_lent]
        takes_lent = (
            not has_lower and bool(lent_shapes) and self._could_make_room(pod_set, lent_shapes)
        )
        has_surplus = policy.shrink_first and self._victims.has_surplus
        surplus_modes = (True, False) if has_surplus else (False,)
        for surplus_only in surplus_modes[:-1] if self._surplus_only else surplus_modes:
            make_scope = partial(PreemptionScope, surplus_only=surplus_only)
            if may_reclaim and over_share <= 0:
                yield make_scope(other_projects=True, own_project=False)
            # Surplus came first (R6), so the own surplus was tried already.
            if has_lower or (takes_lent and (surplus_only or not has_surplus)):
                yield make_scope(other_projects=False, own_project=True, lent=bool(lent_shapes))
            # Stopped own surplus would start again on idle GPUs at once. It justifies no claim on
            # other projects: two projects would otherwise reclaim from each other in turn (R8).
            if may_reclaim and has_lower:
                yield make_scope(other_projects=True, own_project=True)

    def _could_make_room(self, pod_set: PodSet, lent_shapes: list[RequestShape]) -> bool:
        """Return True if the project's own surplus could make room for one worker, by counting."""
        shape = pod_set.members[0].shape
        idle = max(self._state.later.idle)
        return not shape.is_whole or idle + sum(s.devices for s in lent_shapes) >= shape.devices

    def _serve(self, pod_set: PodSet, equivalence: EquivalenceClass) -> bool:
        """Stop victims for a pod set and place it; on False, record what prevents it."""
        if any(not member.shape.nodes for member in pod_set.members):
            return False
        block = first_cap_exceeded(pod_set)
        if block is not None and block.code == "over_build_quota":
            return False  # only preemptible work can go, which the cap excludes
        if self._serve_without_gpu(pod_set):
            return True
        last_search = self._search if equivalence is self._equivalence_class else None
        if last_search and last_search.resume(pod_set, self.stops_left):
            self.record(pod_set, last_search)
            return True
        self._equivalence_class = self._search = None
        victims_fell_short = False
        for scope in self._scopes(pod_set, equivalence):
            is_widest = True  # the first set has all victims of the scope
            for candidates in self._candidate_sets(pod_set, equivalence, scope):
                search = VictimSearch(self._state, pod_set, scope, candidates, self.stops_left)
                if search.run():
                    self.record(pod_set, search)
                    if not victims_fell_short:
                        # The scopes before this one have no victims for the class's next pod set
                        # either.
                        self._equivalence_class, self._search = equivalence, search
                    return True
                self._record_failure(equivalence, search)
                victims_fell_short = victims_fell_short or bool(search.stopped_victims)
                if is_widest and not search.stopped_victims:
                    break  # no victim is available on any node
                is_widest = False
        return False

    def _candidate_sets(
        self, pod_set: PodSet, equivalence: EquivalenceClass, scope: PreemptionScope
    ) -> Iterator[CandidateSet]:
        """Yield sets of victims to choose from: all, then the ones on a few nodes.

        A project over its entitlement yields only that much. Victims in R4's order alone may leave
        nodes where the claimant does not fit; victims on just the needed nodes either suffice or
        not. That selection ignores R4, and may stop a workload that has run for long. A claim
        beyond its quota therefore takes only workloads that save their work this way (ADR 0018).
        """
        if self._victims.has_surplus and not self._could_help(pod_set, scope):
            return  # a long search could not succeed
        protected = None if scope.surplus_only else self._victims.protected
        yield CandidateSet(
            partial(self._victims.of_project, surplus_only=scope.surplus_only), None, protected
        )
        if scope.surplus_only:
            return
        project, on_node = pod_set.planned.project, self._state.on_node
        is_owed = not scope.other_projects or project.allocated + pod_set.demand <= project.quota
        for nodes in self._node_sets(pod_set, equivalence, scope):
            members = [member for node in nodes for member in on_node[node]]
            if not is_owed:
                members = [m for m in members if m.planned.workload.saves]
            victims_by_project = self._victims.of_workers(members)
            if victims_by_project:
                among = {ancestor for project in victims_by_project for ancestor in project.path}
                yield CandidateSet(victims_by_project.__getitem__, among)

    def _could_help(self, pod_set: PodSet, scope: PreemptionScope) -> bool:
        """Return True if a node exists where one of its workers could have room."""
        state, shape = self._state, pod_set.members[0].shape
        if shape.devices <= 1 or state.later.find(shape) is not None:
            return (
                True  # a search is cheaper than this check, or something other than devices lacks
            )
        if state.protects and state.policy.explain != "none":
            return True  # only a search finds the end of a protection (R8)
        return self._bounds.has_project_over(pod_set, scope) and any(
            node in shape.nodes and self._bounds.could_suffice([node], pod_set, scope)
            for node in self._emptiest_first
        )

    def _node_sets(
        self, pod_set: PodSet, equivalence: EquivalenceClass, scope: PreemptionScope
    ) -> Iterator[list[int]]:
        """Yield the nodes to try: one by one, or for a gang a growing number."""
        state, shape = self._state, pod_set.members[0].shape
        if any(member.shape is not shape for member in pod_set.members):
            return
        roomy = (
            node
            for node in self._emptiest_first
            if node in shape.nodes and self._bounds.could_suffice([node], pod_set, scope)
        )
        if len(pod_set.members) == 1:
            for count, node in enumerate(roomy):
                if count == _MAX_NODES_TRIED:
                    self.not_proven.add(equivalence)
                    return
                yield [node]
            return
        # If only a cap blocks the pod set, no node lacks capacity.
        slots = sum(state.later.slots_by_node(shape).values())
        missing_nodes = max(1, len(pod_set.members) - slots)
        full = (node for node in roomy if not state.later.slots(node, shape))
        nodes = list(islice(full, max(_NODE_MULTIPLES) * missing_nodes))
        for times in _NODE_MULTIPLES:
            chosen = nodes[: times * missing_nodes]
            if self._bounds.could_suffice(chosen, pod_set, scope, missing_nodes):
                yield chosen
            if len(chosen) == len(nodes):
                return

    @cached_property
    def _emptiest_first(self) -> list[int]:
        """Nodes with workers, emptiest first, because they need the fewest victims; sorted once."""
        on_node = self._state.on_node
        nodes = [node for node in range(len(self._state.nodes)) if on_node.get(node)]
        return sorted(nodes, key=self._state.later.fullness, reverse=True)

    def record(self, pod_set: PodSet, search: VictimSearch) -> None:
        """Record the victims of a successful search, and their claimant."""
        self.is_stale = True
        self._cached_bounds = None  # workers started or stopped
        self.has_freed_devices = self.has_freed_devices or bool(search.stopped_victims)
        for stopped_victim in search.stopped_victims:
            for member, phase in zip(stopped_victim.members, stopped_victim.phases, strict=True):
                if phase is Phase.RUNNING:
                    self.evictions[member] = Eviction(
                        pod_set.planned,
                        stopped_victim.candidate.rule,
                        stopped_victim.candidate.victim_project,
                        is_surplus=stopped_victim.is_surplus,
                    )

    def forget(self, search: VictimSearch) -> None:
        """Forget the victims of a search whose result is not used after all."""
        for stopped_victim in search.stopped_victims:
            for member in stopped_victim.members:
                self.evictions.pop(member, None)

    def _record_failure(self, equivalence: EquivalenceClass, search: VictimSearch) -> None:
        if search.blocked_by_never_lent:
            self._allocation.blocks[equivalence] = BLOCKED_BY_NEVER_LENT
        if search.victim_iterator.exceeds_share:
            self.over_share.add(equivalence)
        if search.stops_too_many:
            self.exhausted.add(equivalence)
        until = search.victim_iterator.protected_until()
        if until is not None:
            self.protected[equivalence] = until


def _age_and_index(victim: Victim) -> tuple[Age, int]:
    return victim.planned.age, victim.member.index


def _may_lose_cpu(victim: Victim, claimant: PlannedWorkload) -> bool:
    """Return True if a claim may take a workload for its CPU, which must not take it back (Q6)."""
    planned = victim.planned
    if victim.is_guaranteed or planned is claimant:
        return False
    goes_first = planned.project is claimant.project and planned.rank > claimant.rank  # R1
    return claimant.is_fixed or not goes_first


def _exceeds_gpu_part(capacity: FreeCapacity, booking: Booking, claim_shape: RequestShape) -> bool:
    """Return True if a worker holds more than its GPUs' part of a node, and a claim does not (Q6).

    It must hold too much of something that the claim lacks there. Broken devices have no part.
    """
    node = booking.node
    node_info = capacity.nodes[node]
    node_milli = node_info.usable_devices * WHOLE_GPU
    used_milli = booking.shares * len(booking.devices)
    claim_milli = claim_shape.milli * claim_shape.devices
    exceeds = False
    for total, free, in_use, requested in (
        (node_info.cpu_milli, capacity.cpu[node], booking.cpu, claim_shape.cpu),
        (node_info.memory_mib, capacity.memory[node], booking.memory, claim_shape.memory),
    ):
        if total is None:
            continue
        if requested * node_milli > total * claim_milli:
            return False
        exceeds = exceeds or (free < requested and in_use * node_milli > total * used_milli)
    return exceeds


def _lowest_victims(victims: Sequence[Victim]) -> list[Victim]:
    """Return the lowest-priority victim beyond its request (E2), and that of the rest.

    The former is last in R4's order, whatever its priority, so the lowest of all may be either.
    """
    exceeding_from = bisect_left(victims, True, key=attrgetter("exceeds_request"))
    return [*victims[:exceeding_from][-1:], *victims[exceeding_from:][-1:]]
