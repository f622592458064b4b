"""Selection of the next victim that is allowed and helps the claimant (R1, R2, R4).

Projects are ordered by their overage, the furthest over first; R8 excludes protected victims.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import NamedTuple

from runai.hub_service.scheduler.placement.fit_check import FitCheck
from runai.hub_service.scheduler.placement.quota_check import first_cap_exceeded, quota_path
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import Age, ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.state.victims import (
    FIRST_TIE_BREAKER,
    Protected,
    Victim,
    protected_until,
    victims_of,
)

ReclaimTurn = tuple[int, int, Age]
"""Turn of a project to give: allocation beyond limit and entitlement, and age; greatest first."""


class PreemptionScope(NamedTuple):
    """Scope of a search: other projects (R2), the own one (R1), or surplus only (R6)."""

    other_projects: bool
    own_project: bool
    surplus_only: bool = False
    lent: bool = False
    """True if it includes the own project's surplus, which only uses idle GPUs (E1)."""


class CandidateSet(NamedTuple):
    """Candidate victims of a search: all in scope, or the ones on some nodes."""

    victims: Callable[[ProjectNode], list[Victim]]
    """Returns a project's victims, the best last."""
    among: AbstractSet[ProjectNode] | None = None
    """Projects with candidates, and their ancestors; None is all."""
    protected: Callable[[ProjectNode], list[Protected]] | None = None
    """Returns a project's protected victims, which earlier searches removed from `victims`."""
    for_cpu: Sequence[Victim] = ()
    """Further victims of a claim that lacks CPU or memory, in order (Q6)."""


class Candidate(NamedTuple):
    """A victim, the rule that allows taking it, and the project judged for it."""

    victim: Victim
    rule: str
    victim_project: ProjectNode
    """The project over its entitlement, at R2's level; the own one for a preemption."""
    level: int
    """Level in the claimant's path at which R2 judged it; -1 for a preemption."""
    within_quota: bool = False
    """True if only a claimant within its quota at that level may take it (R2)."""


class VictimIterator:
    """Iterator over the victims of one claimant in one scope."""

    def __init__(
        self,
        state: PlanningState,
        pod_set: PodSet,
        scope: PreemptionScope,
        candidates: CandidateSet,
        fit: FitCheck,
    ) -> None:
        """Start before the first victim."""
        self._state = state
        self.pod_set = pod_set
        """The claimant; replaced by other pod sets with the same request."""
        self.scope = scope
        self._candidates = candidates
        self._fit = fit
        self._path = pod_set.planned.project.path
        # Q4: with a table of quotas, the part that the pod set is charged to is judged.
        self._charged_projects = quota_path(pod_set.planned)
        self._cursors: dict[ProjectNode, int] = {}
        self._cpu_cursor = 0
        self._visited: set[ProjectNode] = set()
        self._rivals: dict[tuple[int, bool], list[tuple[ReclaimTurn, ProjectNode]]] = {}
        self._protected: list[Protected] = []
        """Protected victims found here, except the ones shared by all searches of the pass (R8)."""
        self.relieves_caps = first_cap_exceeded(pod_set) is not None
        """True if the claimant's project caps block it, not a lack of capacity."""
        self.exceeds_share = False
        """True if R2 forbids taking from other projects."""

    def next(self) -> Candidate | None:
        """Return the next victim; None if no other is allowed or helps."""
        if self.scope.other_projects:
            candidate = self._next_of_other_projects()
            if candidate is not None:
                return candidate
        if self.scope.own_project:
            victim = self._next_of_project(self._path[0], own=True)
            if victim is not None:
                return Candidate(victim, self._rule_for(victim), self._path[0], -1)
        return self._next_for_lack_of_cpu()

    def _next_for_lack_of_cpu(self) -> Candidate | None:
        """Return the next useful one of the victims for CPU and memory (Q6)."""
        victims = self._candidates.for_cpu
        while self._cpu_cursor < len(victims):
            victim = victims[self._cpu_cursor]
            self._cpu_cursor += 1
            self._state.victims_examined += 1
            if (
                victim.is_active
                and self._is_useful(victim)
                and self._protected_until(victim) is None
            ):
                return Candidate(victim, "Q6", victim.planned.project, -1)
        return None

    def _next_of_other_projects(self) -> Candidate | None:
        """Return the next victim of the rival furthest over, of all levels (R2)."""
        best_candidate: Candidate | None = None
        furthest_turn: ReclaimTurn | None = None
        for level, own_project in enumerate(self._path):
            if not self.stays_within_share(level):
                self.exceeds_share = True
                break
            is_within_quota = self.stays_within_quota(level)
            rivals = self._rivals_at(level, own_project, is_within_quota=is_within_quota)
            while rivals:
                turn, rival = rivals[-1]
                if furthest_turn is not None and turn < furthest_turn:
                    break
                victim = None
                if _may_lose(rival, is_within_quota=is_within_quota):
                    victim = self._next_in_subtree(rival)
                if victim is not None:
                    best_candidate = Candidate(victim, "R2", rival, level, rival.overage <= 0)
                    furthest_turn = turn
                    break
                rivals.pop()
        return best_candidate

    def _rivals_at(
        self, level: int, own_project: ProjectNode, *, is_within_quota: bool
    ) -> list[tuple[ReclaimTurn, ProjectNode]]:
        """Return the projects that may lose something at a level, the furthest over last (R4)."""
        key, among = (level, is_within_quota), self._candidates.among
        rivals = self._rivals.get(key)
        if rivals is None:
            siblings = own_project.parent.children if own_project.parent else self._state.tree.roots
            rivals = self._rivals[key] = [
                (rival.reclaim_order, rival)
                for sibling in siblings
                if sibling is not own_project
                for rival in sibling.parts or (sibling,)
                if (among is None or rival in among)
                and _may_lose(rival, is_within_quota=is_within_quota)
            ]
            rivals.sort(key=itemgetter(0))
        return rivals

    def rerank(self, project: ProjectNode) -> None:
        """Update the rank of a project that lost something."""
        for rivals in self._rivals.values():
            for index in range(len(rivals) - 1, -1, -1):
                if rivals[index][1] is project:
                    del rivals[index]
                    insort(rivals, (project.reclaim_order, project), key=itemgetter(0))
                    break

    def restart(self) -> None:
        """Start over from the first victim: useless ones may help once other resources lack."""
        self._cursors.clear()
        self._rivals.clear()
        self._cpu_cursor = 0

    def stays_within_share(self, level: int) -> bool:
        """Return True if a level of the claimant's path stays within its fair share (R2)."""
        own_project = self._charged_projects[level]
        return own_project.allocated + self.pod_set.demand <= own_project.fair_share

    def stays_within_quota(self, level: int) -> bool:
        """Return True if a level of the claimant's path stays within its quota (R2)."""
        own_project = self._charged_projects[level]
        return own_project.allocated + self.pod_set.demand <= own_project.quota

    def _next_in_subtree(self, project: ProjectNode) -> Victim | None:
        """Return the next victim below a rival, of the child furthest over first."""
        if not project.children:
            return self._next_of_project(project, own=False)
        # A child's quota does not protect it while its ancestor is over (R2).
        ranked = sorted(project.children, key=lambda a: a.reclaim_order, reverse=True)
        for child in ranked:
            victim = self._next_in_subtree(child)
            if victim is not None:
                return victim
        return None

    def _next_of_project(self, project: ProjectNode, *, own: bool) -> Victim | None:
        """Move a project's cursor to its next victim that may go and helps; return that one.

        `own` is for the claimant's project. Protected victims are noted on the way (R8).
        """
        victims = self._candidates.victims(project)
        cursor = self._cursors.get(project)
        if cursor is None:
            if project not in self._visited:
                self._visited.add(project)
                while victims and not victims[-1].is_active:
                    victims.pop()  # stopped before this search took anything here
            cursor = len(victims) - 1
        claimant = self.pod_set.planned
        while cursor >= 0:
            self._state.victims_examined += 1
            victim = victims[cursor]
            if own:
                may_go = self._preempts(victim) or (self.scope.lent and victim.is_lent)
                if not may_go and not self.scope.lent and not victim.exceeds_request:
                    cursor = -1  # from here on, priorities are as high (R1)
                    break
            else:
                may_go = not victim.is_guaranteed  # E4
            is_available = may_go and victim.is_active and victim.planned is not claimant
            if is_available and self._is_useful(victim):
                until = self._protected_until(victim)
                if until is None:
                    break
                self._add_protected(Protected(victim, until), project, cursor)
            cursor -= 1
        self._cursors[project] = cursor
        return victims[cursor] if cursor >= 0 else None

    def _preempts(self, victim: Victim) -> bool:
        """Return True if the claimant preempts a victim of its own project (R1)."""
        claimant = self.pod_set.planned
        return claimant.is_fixed or victim.planned.rank < claimant.rank

    def _rule_for(self, victim: Victim) -> str:
        """Return the rule by which a victim of the own project yields."""
        if victim.exceeds_request:
            return "E2"
        return "R1" if self._preempts(victim) else "E1"

    def _is_useful(self, victim: Victim) -> bool:
        """Return True if the claimant may fit better without a victim."""
        if self.relieves_caps:
            return True
        for member in victim.workers():
            if member.booking is not None and self._fit.gains_from(member.booking):
                return True
        return False

    def equivalent_victims(self, victim: Victim, bookings: Sequence[Booking]) -> list[Victim]:
        """Return the workloads that may go as well as a victim that held this, the best first.

        They run on its nodes, hold as much, and only break ties in another way (R4).
        """
        project, on_node = victim.planned.project, self._state.on_node
        members = [m for node in {b.node: None for b in bookings} for m in on_node.get(node, ())]
        planned_workloads = {m.planned: None for m in members if m.planned.project is project}
        self._state.victims_examined += len(planned_workloads)
        quota = sum(booking.quota for booking in bookings)
        equivalents = [
            equivalent
            for planned in planned_workloads
            if planned is not self.pod_set.planned and planned.sizes is None
            for equivalent in victims_of(planned, self._state.time)[-1:]
            if equivalent.key[:FIRST_TIE_BREAKER] == victim.key[:FIRST_TIE_BREAKER]
            and equivalent.is_guaranteed == victim.is_guaranteed
            and quota == sum(m.booking.quota for m in equivalent.workers() if m.booking)
            and self._protected_until(equivalent) is None
        ]
        return sorted(equivalents, key=lambda equivalent: equivalent.key, reverse=True)

    # ---- protected victims (R8)

    def _protected_until(self, victim: Victim) -> int | None:
        state = self._state
        if not state.protects or victim.is_surplus:
            return None
        return protected_until(victim.planned, victim.workers(), state.policy, state.time)

    def _add_protected(self, protected: Protected, project: ProjectNode, cursor: int) -> None:
        """Note a protected victim, for all searches of the pass if its protection is final."""
        if self._candidates.protected is not None and protected.victim.is_settled:
            del self._candidates.victims(project)[cursor]
            insort(self._candidates.protected(project), protected, key=lambda p: p.victim.key)
        else:
            self._protected.append(protected)

    def protected_until(self) -> int | None:
        """Return when the first useful victim loses its protection; None if none is protected."""
        protected = self._protected
        if self._candidates.protected is not None:
            protected = protected + [
                p for a in self._visited for p in self._candidates.protected(a)
            ]
            self._state.victims_examined += len(protected)
        own_project = self._path[0]
        protection_ends = [
            until
            for victim, until in protected
            if victim.planned is not self.pod_set.planned
            and (victim.planned.project is not own_project or self._preempts(victim))
            and self._is_useful(victim)
        ]
        return min(protection_ends, default=None)


def _may_lose(rival: ProjectNode, *, is_within_quota: bool) -> bool:
    """Return True if a project may lose something, judged before it does (R2)."""
    return rival.overage > 0 or (is_within_quota and rival.allocated > rival.quota)
