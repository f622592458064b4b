"""Counterfactuals: changes with which a waiting workload would start (X).

Each code of a wait has a list of changes worth trying, in order. A change is reported only if
`decide` starts the workload with it, or reserves its devices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runai.hub_service.scheduler.explanations.device_holders import Held, Holdings
from runai.hub_service.scheduler.explanations.forecast import Decide
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
from runai.hub_service.scheduler.state.project_tree import UNLIMITED, Account

MOST_TOLD = 3
_ENDINGS_TRIED = 6
_PRIORITY_HIGH = 75
_WHOLE = 1000


class Trials:
    """Runs `decide` on changed snapshots, a limited number of times."""

    def __init__(
        self, snapshot: Snapshot, workload: Workload, decide: Decide, most: int, *, at_once: bool
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
        world = changed(self._base, changes)
        workload = next(w for w in world.workloads if w.name == self._name)
        return serves(self._plan(world), workload, at_once=self._at_once)

    def _plan(self, world: Snapshot) -> Plan:
        """Return the plan.

        If only workloads differ, the shared index is changed for it and restored.
        """
        if (world.projects, world.policy) != (self._base.projects, self._base.policy):
            return self._decide(world)
        left = {w.name: w for w in world.workloads}
        new = tuple(w for name, w in left.items() if self._present[name] is not w)
        gone = tuple(name for name in self._present if name not in left)
        self._index.apply(Changes(workloads=new, gone=gone))
        plan = self._decide(self._index)
        touched = (*(w.name for w in new), *gone)
        self._index.apply(Changes(workloads=tuple(self._present[name] for name in touched)))
        return plan


class Search:
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
        told: list[Counterfactual] = []
        for way in self._ways():
            if len(told) == MOST_TOLD or not self._trials.left:
                break
            found = way()
            if found is not None and all(found.changes != other.changes for other in told):
                told.append(found)
        return tuple(told)

    def _ways(self) -> Sequence[Callable[[], Counterfactual | None]]:
        any_room = (
            self._giving_back,
            self._an_end,
            self._more_quota,
            self._before_them,
            self._less,
        )
        return {
            "unknown_project": (),
            "stopping": (self._when_gone,),
            "no_such_node": (self._less, self._anywhere),
            "over_build_quota": (self._an_end, self._a_higher_cap, self._preemptible),
            "over_limit": (self._an_end, self._less, self._a_higher_cap),
            "held_for": (self._others_gone, self._lent, self._an_end, self._less),
            "behind": (self._others_gone, self._before_them, self._less, self._more_quota),
            "fragmented": (self._moves, self._an_end, self._giving_back, self._less),
        }.get(self._reason.code, any_room)

    # ---- other workloads

    def _giving_back(self) -> Counterfactual | None:
        """Find the least that a project over its entitlement would have to release."""
        for rival in self._holdings.rivals():
            for chosen in self._holdings.sets_of(rival):
                names = tuple(held.workload.name for held in chosen)
                if self._trials.succeed([EndWorkloads(workloads=names)]):
                    return self._given_back(rival, self._fewest(chosen))
                if not self._trials.left:
                    return None
        return None

    def _fewest(self, chosen: Sequence[Held]) -> list[Held]:
        """Drop unnecessary workloads; the first in R4's order are kept longest."""
        needed = list(chosen)
        for held in reversed(chosen):
            fewer = [h for h in needed if h is not held]
            names = tuple(h.workload.name for h in fewer)
            if fewer and self._trials.succeed([EndWorkloads(workloads=names)]):
                needed = fewer
        return needed

    def _given_back(self, rival: Account, chosen: Sequence[Held]) -> Counterfactual:
        until = max(held.protected_until for held in chosen)
        changes = (EndWorkloads(workloads=tuple(held.workload.name for held in chosen)),)
        amount = sum(held.total for held in chosen)
        return Counterfactual(
            changes=changes,
            text=self._wording.giving_back(rival.name, amount, self._holdings.over(rival), until),
            protected_until=until if until > self._now else None,
        )

    def _an_end(self) -> Counterfactual | None:
        """Find the sufficient workload with the earliest expected end."""
        for held in self._holdings.by_end(self._reason.code)[:_ENDINGS_TRIED]:
            found = self._if_ended([held.workload])
            if found is not None:
                return found
        return None

    def _others_gone(self) -> Counterfactual | None:
        """Try without the workload named by the wait reason."""
        named = [w for w in self._holdings.workloads if w.name == self._reason.for_]
        return self._if_ended(named, "were not there") if named else None

    def _when_gone(self) -> Counterfactual | None:
        return self._if_ended(self._holdings.leaving(), "had gone")

    def _if_ended(
        self, workloads: Sequence[Workload], verb: str = "ended"
    ) -> Counterfactual | None:
        if not workloads:
            return None
        change = EndWorkloads(workloads=tuple(w.name for w in workloads))
        return self._told([change], self._wording.gone(workloads, verb))

    def _moves(self) -> Counterfactual | None:
        return self._told([AllowMoves()], self._wording.moves())

    # ---- settings of projects

    def _a_higher_cap(self) -> Counterfactual | None:
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
        return self._told(changes, self._wording.settings(changes)) if changes else None

    def _more_quota(self) -> Counterfactual | None:
        """Raise the quotas on its path so that the workload is within them."""
        changes: list[Change] = []
        for account in self._holdings.path:
            needed = account.allocated + self._holdings.demand
            if needed > account.quota and self._holdings.demand:
                changes += self._settings(account, quota=-(-needed // _WHOLE) * _WHOLE)
        return self._told(changes, self._wording.settings(changes)) if changes else None

    def _lent(self) -> Counterfactual | None:
        """Lend the GPUs that other projects never lend (Q2)."""
        changes: list[Change] = []
        for account in self._holdings.keepers():
            changes += self._settings(account, never_lent=0)
        return self._told(changes, self._wording.settings(changes)) if changes else None

    @staticmethod
    def _settings(account: Account, **settings: int | None) -> Iterator[Change]:
        if account.project.name != account.name:
            return  # a parent's own queue has no settings; only the parent has
        for setting, value in settings.items():
            if value is not None and value < UNLIMITED:
                yield SetProject(project=account.name, setting=setting, value=value)  # type: ignore[arg-type]  # the keywords above

    # ---- the workload itself

    def _before_them(self) -> Counterfactual | None:
        if self._workload.kind != "job" or self._workload.rank >= _PRIORITY_HIGH:
            return None
        return self._asking(priority=_PRIORITY_HIGH)

    def _preemptible(self) -> Counterfactual | None:
        return None if self._workload.is_preemptible else self._asking(preemptible=True)

    def _anywhere(self) -> Counterfactual | None:
        if not any(w.node_selector or w.gpu_types or w.nodes for w in self._workload.workers):
            return None
        return self._asking(anywhere=True)

    def _less(self) -> Counterfactual | None:
        """Find the largest smaller request that would start."""
        workload = self._workload
        first = workload.workers[0]
        if workload.minimum > 1:
            return self._largest(range(1, workload.minimum), lambda n: self._ask(workers=n))
        if first.gpus > _WHOLE:
            sizes: Sequence[int] = range(_WHOLE, first.gpus, _WHOLE)
        else:
            sizes = [size for size in (250, 500) if size < first.gpus]
        return self._largest(sizes, lambda size: self._ask(gpus=size))

    def _largest(
        self, sizes: Sequence[int], ask: Callable[[int], AskOtherwise]
    ) -> Counterfactual | None:
        many = bisect_left(sizes, True, key=lambda size: not self._trials.succeed([ask(size)]))
        if not many:
            return None
        best = ask(sizes[many - 1])
        return Counterfactual(changes=(best,), text=self._wording.asking(self._workload, best))

    def _ask(self, **otherwise: int | bool) -> AskOtherwise:
        return AskOtherwise(workload=self._workload.name, **otherwise)  # type: ignore[arg-type]  # its own fields

    def _asking(self, **otherwise: int | bool) -> Counterfactual | None:
        change = self._ask(**otherwise)
        return self._told([change], self._wording.asking(self._workload, change))

    def _told(self, changes: Sequence[Change], text: str) -> Counterfactual | None:
        return (
            Counterfactual(changes=tuple(changes), text=text)
            if self._trials.succeed(changes)
            else None
        )
