"""Counterfactuals: changes with which a waiting workload would start (X).

Each code of a wait has a list of changes worth trying, in order. A change is reported only if
`decide` starts the workload with it, or reserves its devices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runai.hub_service.scheduler.explanations.device_holders import HolderAllocation, Holdings
from runai.hub_service.scheduler.explanations.forecast import DecideFunction
from runai.hub_service.scheduler.explanations.sentences import Wording
from runai.hub_service.scheduler.model.explanation import (
    AllowMoves,
    AskOtherwise,
    Change,
    Counterfactual,
    EndWorkloads,
    SetProject,
)
from runai.hub_service.scheduler.model.snapshot import Plan, Reason, Snapshot, Workload
from runai.hub_service.scheduler.model.what_if import changed, serves
from runai.hub_service.scheduler.state.cluster_index import Changes, Index
from runai.hub_service.scheduler.state.project_tree import UNLIMITED, ProjectNode

MOST_TOLD = 3
_ENDINGS_TRIED = 6
_PRIORITY_HIGH = 75
_WHOLE = 1000
_LIMITS_TRIED = (300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)
"""Time limits in seconds, as users write them: five minutes to a day."""


class Trials:
    """Runs `decide` on changed snapshots, a limited number of times."""

    def __init__(
        self,
        snapshot: Snapshot,
        workload: Workload,
        decide: DecideFunction,
        most: int,
        *,
        at_once: bool,
    ) -> None:
        """Allow `most` runs; with `at_once`, a reservation does not count as success."""
        # Skip wait reasons: nothing reads these plans, and sentences cost time.
        self._base = replace(snapshot, policy=replace(snapshot.policy, explain="none"))
        self._index = Index(self._base)
        self._present = {w.name: w for w in snapshot.workloads}
        self._name = workload.name
        self._decide = decide
        self._at_once = at_once
        self.left = most

    def succeed(self, changes: Sequence[Change]) -> bool:
        """Return True if the workload is served with these changes."""
        if not self.left:
            return False
        self.left -= 1
        hypothetical = changed(self._base, changes)
        workload = next(w for w in hypothetical.workloads if w.name == self._name)
        return serves(self._plan(hypothetical).decisions, workload, at_once=self._at_once)

    def _plan(self, hypothetical: Snapshot) -> Plan:
        """Return the scheduler's plan for a changed snapshot.

        If only workloads differ, the shared index is changed for it and restored.
        """
        if (hypothetical.projects, hypothetical.policy) != (self._base.projects, self._base.policy):
            return self._decide(hypothetical)
        left = {w.name: w for w in hypothetical.workloads}
        new = tuple(w for name, w in left.items() if self._present[name] is not w)
        gone = tuple(name for name in self._present if name not in left)
        self._index.apply(Changes(workloads=new, gone=gone))
        plan = self._decide(self._index)
        touched = (*(w.name for w in new), *gone)
        self._index.apply(Changes(workloads=tuple(self._present[name] for name in touched)))
        return plan


class CounterfactualSearch:
    """Search for the counterfactuals of one wait."""

    def __init__(
        self,
        snapshot: Snapshot,
        workload: Workload,
        reason: Reason,
        holdings: Holdings,
        wording: Wording,
        trials: Trials,
    ) -> None:
        """Start without counterfactuals."""
        self._now = snapshot.now
        self._workload = workload
        self._reason = reason
        self._holdings = holdings
        self._wording = wording
        self._trials = trials

    def run(self) -> tuple[Counterfactual, ...]:
        """Return at most three counterfactuals of different kinds, the nearest first."""
        found_so_far: list[Counterfactual] = []
        for way in self._attempts():
            if len(found_so_far) == MOST_TOLD or not self._trials.left:
                break
            found = way()
            if found is not None and all(found.changes != other.changes for other in found_so_far):
                found_so_far.append(found)
        return tuple(found_so_far)

    def _attempts(self) -> Sequence[Callable[[], Counterfactual | None]]:
        any_room = (
            self._release_overage,
            self._earliest_end,
            self._raise_quotas,
            self._raise_priority,
            self._smaller_request,
        )
        return {
            "unknown_project": (),
            "not_a_member": (),
            "stopping": (self._without_leaving,),
            "no_such_node": (self._smaller_request, self._any_node),
            "over_build_quota": (self._earliest_end, self._raise_caps, self._preemptible),
            "over_limit": (self._earliest_end, self._smaller_request, self._raise_caps),
            "held_for": (
                self._short_limit,
                self._without_named,
                self._lend_reserved,
                self._earliest_end,
                self._smaller_request,
            ),
            "behind": (
                self._without_named,
                self._raise_priority,
                self._smaller_request,
                self._raise_quotas,
            ),
            "fragmented": (
                self._moves,
                self._earliest_end,
                self._release_overage,
                self._smaller_request,
            ),
        }.get(self._reason.code, any_room)

    # ---- other workloads

    def _release_overage(self) -> Counterfactual | None:
        """Find the least that a project over its entitlement would have to release."""
        for rival in self._holdings.rivals():
            for chosen in self._holdings.sets_of(rival):
                names = tuple(held.workload.name for held in chosen)
                if self._trials.succeed([EndWorkloads(workloads=names)]):
                    return self._released(rival, self._fewest(chosen))
                if not self._trials.left:
                    return None
        return None

    def _fewest(self, chosen: Sequence[HolderAllocation]) -> list[HolderAllocation]:
        """Drop unnecessary workloads; the first in R4's order are kept longest."""
        needed = list(chosen)
        for held in reversed(chosen):
            fewer = [h for h in needed if h is not held]
            names = tuple(h.workload.name for h in fewer)
            if fewer and self._trials.succeed([EndWorkloads(workloads=names)]):
                needed = fewer
        return needed

    def _released(self, rival: ProjectNode, chosen: Sequence[HolderAllocation]) -> Counterfactual:
        until = max(held.protected_until for held in chosen)
        changes = (EndWorkloads(workloads=tuple(held.workload.name for held in chosen)),)
        amount = sum(held.total for held in chosen)
        return Counterfactual(
            changes=changes,
            text=self._wording.giving_back(rival.name, amount, self._holdings.over(rival), until),
            protected_until=until if until > self._now else None,
        )

    def _earliest_end(self) -> Counterfactual | None:
        """Find the sufficient workload with the earliest expected end."""
        for held in self._holdings.by_end(self._reason.code)[:_ENDINGS_TRIED]:
            found = self._if_ended([held.workload])
            if found is not None:
                return found
        return None

    def _without_named(self) -> Counterfactual | None:
        """Try without the workload named by the wait reason."""
        named = [w for w in self._holdings.workloads if w.name == self._reason.for_]
        return self._if_ended(named, "were not there") if named else None

    def _without_leaving(self) -> Counterfactual | None:
        return self._if_ended(self._holdings.leaving(), "had gone")

    def _if_ended(
        self, workloads: Sequence[Workload], verb: str = "ended"
    ) -> Counterfactual | None:
        if not workloads:
            return None
        change = EndWorkloads(workloads=tuple(w.name for w in workloads))
        return self._verified([change], self._wording.gone(workloads, verb))

    def _moves(self) -> Counterfactual | None:
        return self._verified([AllowMoves()], self._wording.moves())

    # ---- settings of projects

    def _raise_caps(self) -> Counterfactual | None:
        """Raise each cap that is too low to the needed value (Q1, Q3)."""
        demand = self._holdings.demand
        changes: list[Change] = []
        for account in self._holdings.path:
            if account.allocated + demand > account.limit:
                changes += self._settings(account, limit=account.allocated + demand)
            needed = account.build + demand
            if not self._workload.is_preemptible and needed > account.build_quota:
                changes += self._settings(
                    account,
                    quota=needed if needed > account.quota else None,
                    build_quota=needed if account.project.build_quota is not None else None,
                )
        return self._verified(changes, self._wording.settings(changes)) if changes else None

    def _raise_quotas(self) -> Counterfactual | None:
        """Raise the quotas on its path so that the workload is within them."""
        changes: list[Change] = []
        for account in self._holdings.path:
            needed = account.allocated + self._holdings.demand
            if needed > account.quota and self._holdings.demand:
                changes += self._settings(account, quota=-(-needed // _WHOLE) * _WHOLE)
        return self._verified(changes, self._wording.settings(changes)) if changes else None

    def _lend_reserved(self) -> Counterfactual | None:
        """Lend the GPUs that other projects never lend (Q2)."""
        changes: list[Change] = []
        for account in self._holdings.keepers():
            changes += self._settings(account, never_lent=0)
        return self._verified(changes, self._wording.settings(changes)) if changes else None

    @staticmethod
    def _settings(account: ProjectNode, **settings: int | None) -> Iterator[Change]:
        if account.project.name != account.name:
            return  # a parent's own queue has no settings; only the parent has
        for setting, value in settings.items():
            if value is not None and value < UNLIMITED:
                yield SetProject(project=account.name, setting=setting, value=value)  # type: ignore[arg-type]  # the keywords above

    # ---- the workload itself

    def _short_limit(self) -> Counterfactual | None:
        """Find the longest time limit with which it may use what is held (O4)."""
        if self._reason.rule != "O4":
            return None
        now = self._workload.max_runtime
        limits = [limit for limit in _LIMITS_TRIED if now is None or limit < now]
        return self._largest(limits, lambda limit: self._question(max_runtime=limit))

    def _raise_priority(self) -> Counterfactual | None:
        if self._workload.kind != "job" or self._workload.rank >= _PRIORITY_HIGH:
            return None
        return self._with_request(priority=_PRIORITY_HIGH)

    def _preemptible(self) -> Counterfactual | None:
        return None if self._workload.is_preemptible else self._with_request(preemptible=True)

    def _any_node(self) -> Counterfactual | None:
        if not any(w.node_selector or w.gpu_types or w.nodes for w in self._workload.workers):
            return None
        return self._with_request(anywhere=True)

    def _smaller_request(self) -> Counterfactual | None:
        """Find the largest smaller request that would start."""
        workload = self._workload
        first = workload.workers[0]
        if workload.minimum > 1:
            return self._largest(range(1, workload.minimum), lambda n: self._question(workers=n))
        if first.gpus > _WHOLE:
            sizes: Sequence[int] = range(_WHOLE, first.gpus, _WHOLE)
        else:
            sizes = [size for size in (250, 500) if size < first.gpus]
        return self._largest(sizes, lambda size: self._question(gpus=size))

    def _largest(
        self, sizes: Sequence[int], ask: Callable[[int], AskOtherwise]
    ) -> Counterfactual | None:
        many = bisect_left(sizes, True, key=lambda size: not self._trials.succeed([ask(size)]))
        if not many:
            return None
        best = ask(sizes[many - 1])
        return Counterfactual(changes=(best,), text=self._wording.asking(self._workload, best))

    def _question(self, **otherwise: int | bool) -> AskOtherwise:
        return AskOtherwise(workload=self._workload.name, **otherwise)  # type: ignore[arg-type]  # its own fields

    def _with_request(self, **otherwise: int | bool) -> Counterfactual | None:
        change = self._question(**otherwise)
        return self._verified([change], self._wording.asking(self._workload, change))

    def _verified(self, changes: Sequence[Change], text: str) -> Counterfactual | None:
        return (
            Counterfactual(changes=tuple(changes), text=text)
            if self._trials.succeed(changes)
            else None
        )
