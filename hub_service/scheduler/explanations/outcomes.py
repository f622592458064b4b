"""Outcomes of workloads in a plan, and their differences in a second plan (X).

Each function reads a plan's decisions once: a what-if question about tens of thousands of waiting
workloads costs about as much as a cycle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Plan,
    ProjectShare,
    Reason,
    Resize,
    Snapshot,
    Stop,
    Wait,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.model.what_if import serves

Outcome = Literal["runs", "starts", "starts later", "moves", "resizes", "stops", "waits", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeChange:
    """Outcome of one workload in a hypothetical plan, beside its outcome in the present one."""

    workload: Workload
    is_added: bool
    before: Outcome | None
    """None: it does not exist without the change."""
    after: Outcome
    reason: Reason | None
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeDifference:
    """Effects of hypothetical changes, as of `now` in seconds."""

    now: int
    effects: tuple[OutcomeChange, ...]
    hidden_counts: Mapping[Outcome, int]
    """Number of workloads by outcome; the reader may not see their names."""
    projects_before: Mapping[str, ProjectShare]
    projects: Mapping[str, ProjectShare]


_OUTCOME_BY_KIND: dict[str, Outcome] = {"start": "starts", "move": "moves", "resize": "resizes"}


def compare(
    now: tuple[Snapshot, Plan],
    then: tuple[Snapshot, Plan],
    added: Container[str],
    knows: Callable[[Workload], bool],
) -> OutcomeDifference:
    """Return the workloads with different outcomes; count the ones unknown to the reader."""
    (snapshot, plan), (new_snapshot, new_plan) = now, then
    before, after = outcomes(snapshot, plan), outcomes(new_snapshot, new_plan)
    reasons = _reasons(new_plan)
    effects: list[OutcomeChange] = []
    hidden_counts: Counter[Outcome] = Counter()
    for name, workload in {
        w.name: w for w in (*snapshot.workloads, *new_snapshot.workloads)
    }.items():
        was, becomes = before.get(name), after.get(name, "gone")
        is_added = name in added
        if was == becomes and not is_added:
            continue
        if not is_added and not knows(workload):
            hidden_counts[becomes] += 1
            continue
        reason, position = reasons.get(name, (None, None))
        effects.append(
            OutcomeChange(
                workload=workload,
                is_added=is_added,
                before=was,
                after=becomes,
                reason=reason,
                position=position,
            )
        )
    return OutcomeDifference(
        now=snapshot.now,
        effects=tuple(effects),
        hidden_counts=dict(sorted(hidden_counts.items())),
        projects_before=plan.projects,
        projects=new_plan.projects,
    )


def outcomes(snapshot: Snapshot, plan: Plan) -> dict[str, Outcome]:
    """Return what a plan does with each workload of its snapshot."""
    decisions: defaultdict[str, list[Decision]] = defaultdict(list)
    for decision in plan.decisions:
        decisions[decision.workload].append(decision)
    return {w.name: _outcome(w, decisions.get(w.name, ())) for w in snapshot.workloads}


def _outcome(workload: Workload, decisions: Sequence[Decision]) -> Outcome:
    """Return what the decisions about a workload do with it."""
    kinds = {decision.kind for decision in decisions}
    if serves(decisions, workload, at_once=True):
        for kind, outcome in _OUTCOME_BY_KIND.items():
            if kind in kinds:
                return outcome
        return "runs"
    if "move" in kinds:
        return "moves"
    if "stop" in kinds and any(w.state is WorkerState.RUNNING for w in workload.workers):
        return "stops"
    return "starts later" if serves(decisions, workload) else "waits"


def _reasons(plan: Plan) -> dict[str, tuple[Reason, int | None]]:
    """Return the reason by workload, and the queue position of a wait."""
    reasons: dict[str, tuple[Reason, int | None]] = {}
    for decision in plan.decisions:
        match decision:
            case Wait():
                reasons[decision.workload] = (decision.reason, decision.position)
            case Stop() | Move() | Resize():
                reasons.setdefault(decision.workload, (decision.reason, None))
            case _:
                pass
    return reasons
