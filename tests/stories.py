"""Small worlds that live for some cycles, made from a number: the same each time.

`story(number)` tells what is decided in one of them, a line a cycle, in few words, and at its end
what is explained to one who waits. What those of `NUMBERS` tell is recorded in `stories.txt`; where
a rule changes on purpose, record them again and look at the difference:
`python tests/stories.py > tests/scheduler/stories.txt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dice import worlds
from runai.hub_service.scheduler import Snapshot, explain
from runai.hub_service.scheduler.cycle import run
from runai.hub_service.scheduler.model import Decision, Plan
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import tree_of
from runai.hub_service.scheduler.wire import decision_to_json

FOUND = (257, 402, 461, 466, 572)
"""Found by `mutants --search`: each notices wrong changes that no other test did."""
NUMBERS = (*range(200), *FOUND)
RECORD = Path(__file__).parent / "scheduler" / "stories.txt"


def story(number: int) -> str:
    """Tell what is decided in a world, a line a cycle, and what somebody who waits is told.

    Each line ends with the candidates that were looked at: how much a cycle costs is a promise too.
    """
    lines = [f"story {number}"]
    told = ""
    for world in worlds(number):
        state = State(world, tree_of(world))
        plan = run(state)
        shares = [f"{n} {s.allocated}/{s.fair_share}" for n, s in plan.projects.items()]
        decided = "; ".join(in_words(decision) for decision in plan.decisions)
        lines.append(f"  {decided} | {', '.join(shares)} | {state.looks} looks")
        told = explained(world, plan, number)
    return "\n".join([*lines, told] if told else lines) + "\n"


def explained(world: Snapshot, plan: Plan, number: int) -> str:
    """Tell one of those who wait what would help and when it may start."""
    waiting = [decision.workload for decision in plan.decisions if decision.kind == "wait"]
    if not waiting:
        return ""
    asks = waiting[number % len(waiting)]
    wait = explain(world, plan, asks)
    assert wait is not None
    assert wait.explanation is not None
    found = wait.explanation
    held = [
        f"{h.workload} {h.gpus} until {h.until}{' or so' * h.is_estimated}" for h in found.holders
    ]
    texts = [counterfactual.text for counterfactual in found.counterfactuals]
    if found.expected_start is not None:
        texts.append(found.expected_start.text)
    if held:
        texts.insert(0, f"held: {', '.join(held)}")
    if found.ahead:
        texts.insert(0, f"after {', '.join(found.ahead)}")
    return f"  {asks}? {'; '.join(texts)}"


def in_words(decision: Decision) -> str:
    """Write a decision in few words."""
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


if __name__ == "__main__":
    sys.stdout.writelines(story(number) for number in NUMBERS)
