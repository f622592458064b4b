"""Counterfactuals: changes with which a waiting workload would start (X).

Each code of a wait has a list of changes worth trying, in order. A change is reported only if
`decide` starts the workload with it, or reserves its devices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runai.hub_service.scheduler.explanations.device_holders import (
    HolderAllocation,
    HolderAllocations,
)
from runai.hub_service.scheduler.explanations.forecast import DecideFunction
from runai.hub_service.scheduler.explanations.sentences import SentenceFormatter
from runai.hub_service.scheduler.model.explanation import (
    AllowMoves,
    Change,
    ChangeRequest,
    Counterfactual,
    EndWorkloads,
    SetProject,
)
from runai.hub_service.scheduler.model.snapshot import Plan, Reason, Snapshot, Workload
from runai.hub_service.scheduler.model.what_if import changed, serves
from runai.hub_service.scheduler.state.cluster_index import ClusterIndex, SnapshotChanges
from runai.hub_service.scheduler.state.project_tree import UNLIMITED, ProjectNode

MAX_COUNTERFACTUALS = 3
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
        max_trials: int,
        *,
        at_once: bool,
    ) -> None:
        """Allow `max_trials` runs; with `at_once`, a reservation does not count as success."""
        # Skip wait reasons: nothing reads these plans, and sentences cost time.
        self._base = replace(snapshot, policy=replace(snapshot.policy, explain="none"))
        self._index = ClusterIndex(self._base)
        self._workloads = {w.name: w for w in snapshot.workloads}
        self._name = workload.name
        self._decide = decide
        self._at_once = at_once
        self.remaining = max_trials

    def try_changes(self, changes: Sequence[Change]) -> bool:
        """Plan with these changes; return True if the workload is served, and trials remained."""
        if not self.remaining:
            return False
        self.remaining -= 1
        snapshot = changed(self._base, changes)
        workload = next(w for w in snapshot.workloads if w.name == self._name)
        return serves(self._plan(snapshot).decisions, workload, at_once=self._at_once)

    def _plan(self, snapshot: Snapshot) -> Plan:
        """Return the scheduler's plan for a changed snapshot.

        If only workloads differ, the shared index is changed for it and restored.
        """
        if (snapshot.projects, snapshot.policy) != (self._base.projects, self._base.policy):
            return self._decide(snapshot)
        remaining_workloads = {w.name: w for w in snapshot.workloads}
        new = tuple(w for name, w in remaining_workloads.items() if self._workloads[name] is not w)
        removed = tuple(name for name in self._workloads if name not in remaining_workloads)
        self._index.apply(SnapshotChanges(workloads=new, removed=removed))
        plan = self._decide(self._index)
        names = (*(w.name for w in new), *removed)
        self._index.apply(SnapshotChanges(workloads=tuple(self._workloads[name] for name in names)))
        return plan


class CounterfactualSearch:
    """Search for the counterfactuals of one wait."""

    def __init__(
        self,
        snapshot: Snapshot,
        workload: Workload,
        reason: Reason,
        holder_allocations: HolderAllocations,
        formatter: SentenceFormatter,
        trials: Trials,
    ) -> None:
        """Start without counterfactuals."""
        self._now = snapshot.now
        self._workload = workload
        self._reason = reason
        self._holder_allocations = holder_allocations
        self._formatter = formatter
        self._trials = trials

    def run(self) -> tuple[Counterfactual, ...]:
        """Return at most three counterfactuals of different kinds, the nearest first."""
        counterfactuals: list[Counterfactual] = []
        for attempt in self._attempts():
            if len(counterfactuals) == MAX_COUNTERFACTUALS or not self._trials.remaining:
                break
            found = attempt()
            if found is not None and all(found.changes != c.changes for c in counterfactuals):
                counterfactuals.append(found)
        return tuple(counterfactuals)

    def _attempts(self) -> Sequence[Callable[[], Counterfactual | None]]:
        """Return the attempts worth making for the wait's code, in order."""
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
            "stopping": (self._without_terminating,),
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
        for rival in self._holder_allocations.rivals():
            for chosen in self._holder_allocations.sets_of(rival):
                names = tuple(holder.workload.name for holder in chosen)
                if self._trials.try_changes([EndWorkloads(workloads=names)]):
                    return self._released(rival, self._drop_unneeded(chosen))
                if not self._trials.remaining:
                    return None
        return None

    def _drop_unneeded(self, chosen: Sequence[HolderAllocation]) -> list[HolderAllocation]:
        """Return the workloads that must end; the first in R4's order are kept longest."""
        needed = list(chosen)
        for holder in reversed(chosen):
            fewer = [h for h in needed if h is not holder]
            names = tuple(h.workload.name for h in fewer)
            if fewer and self._trials.try_changes([EndWorkloads(workloads=names)]):
                needed = fewer
        return needed

    def _released(self, rival: ProjectNode, chosen: Sequence[HolderAllocation]) -> Counterfactual:
        """Return the counterfactual, already verified, that a rival's workloads end."""
        until = max(holder.protected_until for holder in chosen)
        changes = (EndWorkloads(workloads=tuple(holder.workload.name for holder in chosen)),)
        amount = sum(holder.total for holder in chosen)
        overage = self._holder_allocations.overage_of(rival)
        return Counterfactual(
            changes=changes,
            text=self._formatter.released(rival.name, amount, overage, until),
            protected_until=until if until > self._now else None,
        )

    def _earliest_end(self) -> Counterfactual | None:
        """Find the sufficient workload with the earliest expected end."""
        for holder in self._holder_allocations.by_end(self._reason.code)[:_ENDINGS_TRIED]:
            counterfactual = self._without([holder.workload])
            if counterfactual is not None:
                return counterfactual
        return None

    def _without_named(self) -> Counterfactual | None:
        """Try without the workload named by the wait reason."""
        named = [w for w in self._holder_allocations.workloads if w.name == self._reason.for_]
        return self._without(named, "were not there") if named else None

    def _without_terminating(self) -> Counterfactual | None:
        return self._without(self._holder_allocations.terminating_workloads(), "had gone")

    def _without(self, workloads: Sequence[Workload], verb: str = "ended") -> Counterfactual | None:
        """Try without these workloads."""
        if not workloads:
            return None
        change = EndWorkloads(workloads=tuple(w.name for w in workloads))
        return self._verified([change], self._formatter.removed(workloads, verb))

    def _moves(self) -> Counterfactual | None:
        return self._verified([AllowMoves()], self._formatter.moves())

    # ---- settings of projects

    def _raise_caps(self) -> Counterfactual | None:
        """Raise each cap that is too low to the needed value (Q1, Q3)."""
        demand = self._holder_allocations.demand
        changes: list[Change] = []
        for project_node in self._holder_allocations.path:
            if project_node.allocated + demand > project_node.limit:
                changes += self._settings(project_node, limit=project_node.allocated + demand)
            needed = project_node.build + demand
            if not self._workload.is_preemptible and needed > project_node.build_quota:
                changes += self._settings(
                    project_node,
                    quota=needed if needed > project_node.quota else None,
                    build_quota=needed if project_node.spec.build_quota is not None else None,
                )
        return self._verified(changes, self._formatter.settings(changes)) if changes else None

    def _raise_quotas(self) -> Counterfactual | None:
        """Raise the quotas on its path so that the workload is within them."""
        changes: list[Change] = []
        for project in self._holder_allocations.path:
            needed = project.allocated + self._holder_allocations.demand
            if needed > project.quota and self._holder_allocations.demand:
                changes += self._settings(project, quota=-(-needed // _WHOLE) * _WHOLE)
        return self._verified(changes, self._formatter.settings(changes)) if changes else None

    def _lend_reserved(self) -> Counterfactual | None:
        """Lend the GPUs that other projects never lend (Q2)."""
        changes: list[Change] = []
        for project in self._holder_allocations.non_lending_projects():
            changes += self._settings(project, never_lent=0)
        return self._verified(changes, self._formatter.settings(changes)) if changes else None

    @staticmethod
    def _settings(project_node: ProjectNode, **settings: int | None) -> Iterator[Change]:
        """Yield the changes of a project's settings, without None and values that are no bound."""
        if project_node.spec.name != project_node.name:
            return  # a parent's own queue has no settings; only the parent has
        for setting, value in settings.items():
            if value is not None and value < UNLIMITED:
                yield SetProject(project=project_node.name, setting=setting, value=value)  # type: ignore[arg-type]  # the keywords above

    # ---- the workload itself

    def _short_limit(self) -> Counterfactual | None:
        """Find the longest time limit with which it may use what is reserved (O4)."""
        if self._reason.rule != "O4":
            return None
        current = self._workload.max_runtime
        limits = [limit for limit in _LIMITS_TRIED if current is None or limit < current]
        return self._largest(limits, lambda limit: self._change_request(max_runtime=limit))

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
            fewer = range(1, workload.minimum)
            return self._largest(fewer, lambda count: self._change_request(workers=count))
        if first.gpus > _WHOLE:
            sizes: Sequence[int] = range(_WHOLE, first.gpus, _WHOLE)
        else:
            sizes = [size for size in (250, 500) if size < first.gpus]
        return self._largest(sizes, lambda size: self._change_request(gpus=size))

    def _largest(
        self, sizes: Sequence[int], make_change: Callable[[int], ChangeRequest]
    ) -> Counterfactual | None:
        """Find the largest of ascending sizes that succeeds; every smaller one does too."""
        succeeding_count = bisect_left(
            sizes, True, key=lambda n: not self._trials.try_changes([make_change(n)])
        )
        if not succeeding_count:
            return None
        change = make_change(sizes[succeeding_count - 1])
        text = self._formatter.changed_request(self._workload, change)
        return Counterfactual(changes=(change,), text=text)

    def _change_request(self, **fields: int | bool) -> ChangeRequest:
        return ChangeRequest(workload=self._workload.name, **fields)  # type: ignore[arg-type]  # its own fields

    def _with_request(self, **fields: int | bool) -> Counterfactual | None:
        change = self._change_request(**fields)
        return self._verified([change], self._formatter.changed_request(self._workload, change))

    def _verified(self, changes: Sequence[Change], text: str) -> Counterfactual | None:
        """Return the changes as a counterfactual, if a trial with them succeeds."""
        if not self._trials.try_changes(changes):
            return None
        return Counterfactual(changes=tuple(changes), text=text)
