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

from dice import worlds
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
    return " ".join([str(number), *(_sum_up(*told) for told in cycles(number))])


def cycles(number: int) -> Iterator[tuple[str, str]]:
    """Yield two texts per cycle of a world: the decisions with their cost, and the whole plan."""
    index: ClusterIndex | None = None
    life = worlds(number)
    world: Snapshot | None = next(life)
    while world is not None:
        if number % _BY_INDEX:
            state = PlanningState(world, tree_of(world))
        else:
            index = _carried(index, world)
            state = index.state()
        plan = run(state)
        cost = f"{state.candidates_examined} looks, {state.pod_sets_popped} asks"
        state.roll_back(0)
        decided = [in_words(decision) for decision in plan.decisions]
        shares = [f"{n} {s.allocated}/{s.fair_share}" for n, s in plan.projects.items()]
        at_length = json.dumps(plan_to_json(plan))
        after = _after(life, plan)
        if after is None:
            at_length += "".join([*oversubscribed(world), *asked(world, plan)])
            at_length += explained(world, plan, number)
        yield f"{'; '.join(decided)} | {', '.join(shares)} | {cost}", at_length
        world = after


def in_words(decision: Decision) -> str:
    """Format a decision in few words."""
    told = decision_to_json(decision)
    words = [decision.kind, told.get("worker", decision.workload)]
    if "node" in told:
        devices = ",".join(f"{d['device']}={d['gpus']}" for d in told["devices"])
        words.append(f"{told['node']}:{devices}")
    if told.get("waits_for"):
        words.append(f"after {','.join(told['waits_for'])}")
    if "reason" in told:
        reason = told["reason"]
        words += [
            reason["code"],
            reason["rule"],
            *(["for", reason["for"]] if "for" in reason else []),
        ]
    if "position" in told:
        words.append(f"#{told['position']}")
    return " ".join(words)


def _after(life: Generator[Snapshot, Plan], plan: Plan) -> Snapshot | None:
    """Return the world's next snapshot after a plan; None at its end."""
    try:
        return life.send(plan)
    except StopIteration:
        return None


def _carried(index: ClusterIndex | None, world: Snapshot) -> ClusterIndex:
    """Return the index with the changes since the previous cycle applied."""
    if index is None:
        return ClusterIndex(world)
    before = index.snapshot()
    known = {workload.name: workload for workload in before.workloads}
    there = {workload.name for workload in world.workloads}
    frame = {
        name: getattr(world, name)
        for name in ("nodes", "projects")
        if getattr(world, name) != getattr(before, name)
    }
    index.apply(
        SnapshotChanges(
            now=world.now,
            workloads=tuple(w for w in world.workloads if known.get(w.name) != w),
            removed=tuple(name for name in known if name not in there),
            **frame,
        )
    )
    return index


def asked(world: Snapshot, plan: Plan) -> Iterator[str]:
    """Describe, for up to three pending workloads, their candidate victims in order."""
    known = {workload.name: workload for workload in world.workloads}
    for wait in [decision for decision in plan.decisions if isinstance(decision, Wait)][:3]:
        holdings, code = HolderAllocations(world, plan, known[wait.workload]), wait.reason.code
        if not holdings.path:
            continue
        yield f"\n{wait.workload} lacks {holdings.demand}"
        for held in (holdings.holders(code), holdings.by_end(code)):
            yield f", {[(h.workload.name, h.quota, h.protected_until) for h in held]}"
        yield f", {[account.name for account in holdings.non_lending_projects()]}"
        for rival in holdings.rivals():
            sets = [[held.workload.name for held in some] for some in holdings.sets_of(rival)]
            yield f", {rival.name} by {holdings.overage_of(rival)}: {sets}"


def explained(world: Snapshot, plan: Plan, number: int) -> str:
    """Return the explanation for one pending workload, in some of the worlds."""
    waiting = [decision.workload for decision in plan.decisions if decision.kind == "wait"]
    if number % _EXPLAINED or not waiting:
        return ""
    wait = explain(world, plan, waiting[number // _EXPLAINED % len(waiting)])
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
    life = worlds(number)
    world: Snapshot | None = next(life)
    while world is not None:
        plan = decide(world)
        for decision in plan.decisions:
            reason = getattr(decision, "reason", None)
            yield decision.kind, f"{reason.code} {reason.rule}" if reason else ""
        world = _after(life, plan)


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
