"""Sensitivity of Philly's rows without quotas to the order of jobs submitted in the same second.

    python benchmarks/philly_orders.py --data DIR      # a few minutes of CPU time

One in six of the month's jobs shares its second and project with another job, and the trace does
not record their order. This replays the four rows without quotas in many such orders, with a second
simulator that shares no code with the core: first in first out, the fullest node that fits, ties by
name. A single run of another simulator is one such order. For the same order, this simulator and
`runai simulate` agree in every digit, so the order explains all differences. Writes
benchmarks/results/philly_orders.json.
"""

import argparse
import json
import os
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from machine import measured
from philly import CASES, DATA, FIRST, LAST, NODE_GPUS, REFERENCE, Philly

from runai.hub_service.simulation.policies import PolicyName, quotas_of
from runai.hub_service.simulation.traces import TraceRow, shuffled

RESULTS = Path(__file__).parent / "results" / "philly_orders.json"
POLICIES: Sequence[PolicyName] = ("static-strict", "static", "pool-strict", "pool")
HOUR = 3600
SAME_EVERY_S = 10
"""Seconds between decisions in the comparison with `runai simulate`, the same as there."""

Places = list[tuple[int, int]]
"""Nodes, each with a number of GPUs."""


class Nodes:
    """Free GPUs of all nodes, with a bit mask of nodes per number of free GPUs."""

    def __init__(self, count: int) -> None:
        """Start with all GPUs free."""
        self.free = [NODE_GPUS] * count
        self.nodes_by_free_gpus = [0] * NODE_GPUS + [(1 << count) - 1]

    def place(self, gpus: int) -> Places | None:
        """Allocate GPUs on the fullest node that fits, or on whole nodes; None if none fits."""
        if gpus <= NODE_GPUS:
            level = next(
                (n for n in range(gpus, NODE_GPUS + 1) if self.nodes_by_free_gpus[n]), None
            )
            return None if level is None else [self._take(level, gpus)]
        count = -(-gpus // NODE_GPUS)
        if self.nodes_by_free_gpus[NODE_GPUS].bit_count() < count:
            return None
        return [self._take(NODE_GPUS, NODE_GPUS) for _ in range(count)]

    def give_back(self, places: Places) -> None:
        """Free allocated GPUs."""
        for node, gpus in places:
            self._change(node, gpus)

    def _take(self, level: int, gpus: int) -> tuple[int, int]:
        node = (self.nodes_by_free_gpus[level] & -self.nodes_by_free_gpus[level]).bit_length() - 1
        self._change(node, -gpus)
        return node, gpus

    def _change(self, node: int, gpus: int) -> None:
        self.nodes_by_free_gpus[self.free[node]] ^= 1 << node
        self.free[node] += gpus
        self.nodes_by_free_gpus[self.free[node]] ^= 1 << node


class Line:
    """Queue of waiting jobs by size; a strict queue starts them in order of submission only."""

    def __init__(self, *, is_strict: bool) -> None:
        """Start empty."""
        self._is_strict = is_strict
        self._waiting: dict[int, deque[tuple[int, TraceRow]]] = {}
        self._number = 0

    def join(self, row: TraceRow) -> None:
        """Append a job."""
        size = row.gpus // 1000
        self._waiting.setdefault(size, deque()).append((self._number, row))
        self._number += 1

    def starting(self, nodes: Nodes) -> Iterable[tuple[TraceRow, Places]]:
        """Yield the jobs that start now, with their places."""
        heads = sorted((line[0][0], size) for size, line in self._waiting.items() if line)
        while heads:
            _, size = heads.pop(0)
            places = nodes.place(size)
            if places is None:  # no other job of this size fits, either
                if self._is_strict:
                    return
                continue
            line = self._waiting[size]
            yield line.popleft()[1], places
            if line:
                heads.append((line[0][0], size))
                heads.sort()


def replay(
    rows: Sequence[TraceRow], count: int, since: int, until: int, *, is_strict: bool, every: int
) -> tuple[list[int], int]:
    """Replay jobs on `count` nodes; return each job's wait, and the allocated GPU-seconds."""
    nodes, line = Nodes(count), Line(is_strict=is_strict)
    ends: list[tuple[int, int, Places]] = []
    waits: list[int] = []
    allocated_s = upcoming = 0
    due: int | None = None
    last = -every
    while ends or upcoming < len(rows) or due is not None:
        times = [] if due is None else [due]
        times += [ends[0][0]] if ends else []
        times += [rows[upcoming].submit_s] if upcoming < len(rows) else []
        now, changed = min(times), False
        while ends and ends[0][0] <= now:
            nodes.give_back(heappop(ends)[2])
            changed = True
        while upcoming < len(rows) and rows[upcoming].submit_s <= now:
            line.join(rows[upcoming])
            upcoming, changed = upcoming + 1, True
        if changed and due is None:
            due = max(now, last + every)
        if due is None or due > now:
            continue
        due, last = None, now
        for row, places in line.starting(nodes):
            waits.append(now - row.submit_s)
            heappush(ends, (now + row.duration_s, len(waits), places))
            seconds = min(now + row.duration_s, until) - max(now, since)
            allocated_s += sum(gpus for _, gpus in places) * max(0, seconds)
    return waits, allocated_s


def figures(philly: Philly, policy: PolicyName, seed: int | None, every: int) -> dict[str, float]:
    """Run a row in one order of its jobs; without a seed, ties are ordered by name."""
    setting = philly.setting(CASES[policy])
    rows = philly.rows if seed is None else shuffled(philly.rows, seed)
    rows = sorted(rows, key=lambda row: (row.submit_s, row.job))
    parts = [(rows, len(setting.nodes))]
    if policy.startswith("static"):
        quotas = quotas_of(setting.projects)
        parts = [
            ([row for row in rows if row.project == name], (quota or 0) // 1000 // NODE_GPUS)
            for name, quota in quotas.items()
        ]
    waits: list[int] = []
    allocated_s = 0
    for part, count in parts:
        some, gpu_s = replay(
            *(part, count, philly.settled, philly.until),
            is_strict=policy.endswith("-strict"),
            every=every,
        )
        waits, allocated_s = waits + some, allocated_s + gpu_s
    assert len(waits) == len(rows)
    capacity = len(setting.nodes) * NODE_GPUS * (philly.until - philly.settled)
    return {
        "allocated_pct": round(100 * allocated_s / capacity, 4),
        "wait_mean_h": round(statistics.mean(waits) / HOUR, 4),
    }


def summed(name: str, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the spread of the orders, and the position of the reference's run among them."""
    found: dict[str, Any] = {"orders": len(runs)}
    for key in runs[0]:
        values, reference = sorted(run[key] for run in runs), REFERENCE[name][key]
        mean, spread = statistics.mean(values), statistics.stdev(values)
        found[key] = {
            "mean": round(mean, 3),
            "standard_error": round(spread / len(values) ** 0.5, 3),
            "standard_deviation": round(spread, 3),
            "range": [values[0], values[-1]],
            "reference": reference,
            "ratio": round(mean / reference, 3),
            "orders_above_the_reference": sum(value > reference for value in values),
        }
    return found


def main() -> None:
    """Run the four rows in many orders and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    given = os.environ.get("RUNAI_DATA", str(DATA))
    parser.add_argument("--data", type=Path, default=Path(given), help="holds traces/philly")
    parser.add_argument("--orders", type=int, default=60)
    parser.add_argument("--run", choices=POLICIES, nargs="+", default=POLICIES)
    options = parser.parse_args()
    folder: Path = options.data / "traces" / "philly"
    if not folder.is_dir():
        print(f"left out: there is no {folder}; name the traces' folder by --data")
        return
    about = measured()
    philly = Philly(folder, LAST - FIRST)
    result: dict[str, Any] = {
        "what": "four rows without quotas, jobs of one second in many orders, decided at once",
        **about,
        "source": "Jeon et al., ATC'19: msr-fiddle/philly-traces (CC-BY-4.0)",
        "by_name_every_10_s": figures(philly, "static", None, SAME_EVERY_S),
        "rows": json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {},
    }
    for name in options.run:
        runs = []
        for seed in range(options.orders):
            runs.append(figures(philly, name, seed, 0))
            print(f"{name}, order {seed}: {runs[-1]}", file=sys.stderr, flush=True)
        result["rows"][name] = summed(name, runs)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        print(name, json.dumps(result["rows"][name], indent=1))


if __name__ == "__main__":
    main()
