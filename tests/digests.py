"""Digests of the scheduler's decisions in hundreds of small worlds: one word per cycle.

`digest(number)` summarizes a world: each word is a hash of the cycle's decisions and their cost,
then after a dot a hash of the whole plan with its sentences. A digest shows that a cycle differs,
not how: `python tests/digests.py NUMBER` prints the world in words. After an intended change of a
rule, record them again: `python tests/digests.py > tests/scheduler/digests.txt`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from hashlib import blake2s
from pathlib import Path

from random_snapshots import random_snapshots
from runai.hub_service.scheduler import (
    ClusterIndex,
    Decision,
    Plan,
    Snapshot,
    SnapshotChanges,
    Wait,
    decide,
    explain,
    oversubscribed,
)
from runai.hub_service.scheduler.cycle import run
from runai.hub_service.scheduler.explanations.device_holders import HolderAllocations
from runai.hub_service.scheduler.model.plan_json import decision_to_json, plan_to_json
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of

RECORD = Path(__file__).parent / "scheduler" / "digests.txt"
RECORDED = tuple(RECORD.read_text(encoding="utf-8").splitlines())
NUMBERS = tuple(int(line.split()[0]) for line in RECORDED)
"""The worlds with the most kinds of decisions, chosen by `choose`."""
BATCH = 20
"""Number of worlds in one test."""
_FIRST = 1000
_BY_INDEX, _EXPLAINED = 3, 8
"""One in `_BY_INDEX` worlds uses an index; one in `_EXPLAINED` explains a wait."""


def digest(number: int) -> str:
    """Return the digest of a world as one line."""
    return " ".join([str(number), *(_sum_up(*texts) for texts in cycles(number))])


def cycles(number: int) -> Iterator[tuple[str, str]]:
    """Yield two texts per cycle of a world: the decisions with their cost, and the whole plan."""
    index: ClusterIndex | None = None
    snapshots = random_snapshots(number)
    snapshot: Snapshot | None = next(snapshots)
    while snapshot is not None:
        if number % _BY_INDEX:
            state = PlanningState(snapshot, tree_of(snapshot))
        else:
            index = _updated_index(index, snapshot)
            state = index.state()
        plan = run(state)
        cost = f"{state.candidates_examined} looks, {state.pod_sets_popped} asks"
        state.roll_back(0)
        decided = [format_decision(decision) for decision in plan.decisions]
        shares = [f"{n} {s.allocated}/{s.fair_share}" for n, s in plan.projects.items()]
        at_length = json.dumps(plan_to_json(plan))
        next_snapshot = _next_snapshot(snapshots, plan)
        if next_snapshot is None:
            at_length += "".join([*oversubscribed(snapshot), *describe_victims(snapshot, plan)])
            at_length += explanation_json(snapshot, plan, number)
        yield f"{'; '.join(decided)} | {', '.join(shares)} | {cost}", at_length
        snapshot = next_snapshot


def format_decision(decision: Decision) -> str:
    """Format a decision in few words."""
    fields = decision_to_json(decision)
    words = [decision.kind, fields.get("worker", decision.workload)]
    if "node" in fields:
        devices = ",".join(f"{d['device']}={d['gpus']}" for d in fields["devices"])
        words.append(f"{fields['node']}:{devices}")
    if fields.get("waits_for"):
        words.append(f"after {','.join(fields['waits_for'])}")
    if "reason" in fields:
        reason = fields["reason"]
        words += [
            reason["code"],
            reason["rule"],
            *(["for", reason["for"]] if "for" in reason else []),
        ]
    if "position" in fields:
        words.append(f"#{fields['position']}")
    return " ".join(words)


def _next_snapshot(snapshots: Generator[Snapshot, Plan], plan: Plan) -> Snapshot | None:
    """Return the world's next snapshot after a plan; None at its end."""
    try:
        return snapshots.send(plan)
    except StopIteration:
        return None


def _updated_index(index: ClusterIndex | None, snapshot: Snapshot) -> ClusterIndex:
    """Return the index with the changes since the previous cycle applied."""
    if index is None:
        return ClusterIndex(snapshot)
    before = index.snapshot()
    known = {workload.name: workload for workload in before.workloads}
    names = {workload.name for workload in snapshot.workloads}
    frame = {
        name: getattr(snapshot, name)
        for name in ("nodes", "projects")
        if getattr(snapshot, name) != getattr(before, name)
    }
    index.apply(
        SnapshotChanges(
            now=snapshot.now,
            workloads=tuple(w for w in snapshot.workloads if known.get(w.name) != w),
            removed=tuple(name for name in known if name not in names),
            **frame,
        )
    )
    return index


def describe_victims(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Describe, for up to three pending workloads, their candidate victims in order."""
    known = {workload.name: workload for workload in snapshot.workloads}
    for wait in [decision for decision in plan.decisions if isinstance(decision, Wait)][:3]:
        holdings, code = HolderAllocations(snapshot, plan, known[wait.workload]), wait.reason.code
        if not holdings.path:
            continue
        yield f"\n{wait.workload} lacks {holdings.demand}"
        for candidates in (holdings.holders(code), holdings.by_end(code)):
            yield f", {[(h.workload.name, h.quota, h.protected_until) for h in candidates]}"
        yield f", {[account.name for account in holdings.non_lending_projects()]}"
        for rival in holdings.rivals():
            sets = [
                [holder.workload.name for holder in victims] for victims in holdings.sets_of(rival)
            ]
            yield f", {rival.name} by {holdings.overage_of(rival)}: {sets}"


def explanation_json(snapshot: Snapshot, plan: Plan, number: int) -> str:
    """Return the explanation for one pending workload, in some of the worlds."""
    waiting = [decision.workload for decision in plan.decisions if decision.kind == "wait"]
    if number % _EXPLAINED or not waiting:
        return ""
    wait = explain(snapshot, plan, waiting[number // _EXPLAINED % len(waiting)])
    assert wait is not None
    return json.dumps(decision_to_json(wait))


def _sum_up(in_short: str, at_length: str) -> str:
    return ".".join(
        blake2s(text.encode(), digest_size=2).hexdigest() for text in (in_short, at_length)
    )


def choose(count: int, among: int) -> list[int]:
    """Choose the worlds with the most kinds of decisions; rare kinds count more."""
    happens = {number: set(_kinds(number)) for number in range(_FIRST, _FIRST + among)}
    often = Counter(kind for kinds in happens.values() for kind in kinds)
    worth = {n: sum(often[kind] ** -0.5 for kind in kinds) for n, kinds in happens.items()}
    return sorted(sorted(worth, key=worth.__getitem__, reverse=True)[:count])


def _kinds(number: int) -> Iterator[tuple[str, str]]:
    """Yield the kind and the rule of each decision in a world."""
    snapshots = random_snapshots(number)
    snapshot: Snapshot | None = next(snapshots)
    while snapshot is not None:
        plan = decide(snapshot)
        for decision in plan.decisions:
            reason = getattr(decision, "reason", None)
            yield decision.kind, f"{reason.code} {reason.rule}" if reason else ""
        snapshot = _next_snapshot(snapshots, plan)


def main(arguments: list[str]) -> None:
    """Write the record, with `--choose COUNT AMONG` of new worlds; or print the given worlds."""
    numbers = NUMBERS
    if arguments[:1] == ["--choose"]:
        numbers = tuple(choose(*map(int, arguments[1:])))
    elif arguments:
        for in_short, at_length in cycles(int(arguments[0])):
            print(in_short, at_length, sep="\n", end="\n\n")
        return
    print(*(digest(number) for number in numbers), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
