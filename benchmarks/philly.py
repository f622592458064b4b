"""Replay a month of Microsoft's Philly cluster under private parts, one pool and quotas.

    python benchmarks/philly.py --data DIR             # all runs; some take a quarter of an hour
    python benchmarks/philly.py --run static quota     # some; all other results stay as they are

Trace: Jeon et al., ATC'19 (msr-fiddle/philly-traces, CC-BY-4.0), as recovered by TuftsNATLab/PCS;
nodes of each virtual cluster: Helios, SC'21. Eleven projects, days 47 to 77, capacity by load,
quotas in proportion to the virtual clusters' nodes. Allocation is measured from the third day of
the window to its end; waits are of every job, and remaining jobs are drained. Each figure comes
with an independent reference if there is one. Writes benchmarks/results/philly.json and, if both
were run, the picture of static parts against guaranteed quotas.
"""

import argparse
import csv
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from machine import commit, machine

from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import SHIPPED, Node, Policy, Project
from runai.hub_service.simulation.engine import Run, Setting, simulate
from runai.hub_service.simulation.policies import PolicyName
from runai.hub_service.simulation.results import as_json
from runai.hub_service.simulation.run_pictures import RunColumn, write_picture
from runai.hub_service.simulation.timeline import AllocationTimeline
from runai.hub_service.simulation.traces import TraceRow, read_trace, shuffled

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "philly.json"
PICTURE = HERE.parent / "docs" / "pictures" / "philly-static-against-quotas.png"
PAGE = HERE.parent / "docs" / "dev" / "philly.md"
DATA = HERE.parent.parent / "shared" / "data"

DAY = 86400
FIRST, LAST, SETTLED = 47, 77, 3
NODE_GPUS = 8
LEFT_OUT = "51b7ef"
PAUSE_S = 60
EVERY_S = 10
"""Shortest time between two decisions: a wait for the next cycle counts as a broken quota."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the trace."""

    policy: PolicyName
    load: float = 0.9
    checkpoints: bool = True
    quotas: Literal["given", "skewed"] = "given"
    elastic: bool = False
    min_runtime: int = 0
    """Seconds that a job runs before it can be preempted."""
    seeds: int = 0
    """Number of runs, each with jobs of the same second shuffled; the figures are means."""
    every: int = EVERY_S
    """Shortest time between two decisions, in seconds; 0 decides at each event."""
    shipped: Policy = SHIPPED


CASES: Mapping[str, Case] = {
    "static-strict": Case("static-strict", seeds=3),
    "static": Case("static"),
    "pool-strict": Case("pool-strict", seeds=3),
    "pool": Case("pool", seeds=3),
    "quota-restart": Case("quota", checkpoints=False, seeds=4),
    "quota": Case("quota"),
    "unbounded-moves": Case(
        "quota", shipped=replace(SHIPPED, max_moves=None, max_moves_per_hour=None)
    ),
    "protected": Case("quota", min_runtime=3600),
    "quota-without-moves": Case("quota-without-moves"),
    "quota-at-once": Case("quota", every=0),
    "elastic": Case("quota", elastic=True),
    "skewed-static": Case("static", quotas="skewed"),
    "skewed-quota": Case("quota", quotas="skewed"),
    "0.7-static": Case("static", load=0.7),
    "0.7-pool": Case("pool", load=0.7),
    "0.7-quota": Case("quota", load=0.7),
    "1.1-static": Case("static", load=1.1),
    "1.1-pool": Case("pool", load=1.1),
    "1.1-quota": Case("quota", load=1.1),
}

REFERENCE: Mapping[str, Mapping[str, float]] = {
    name: dict(
        zip(
            (
                *("allocated_pct", "wait_mean_h", "wait_p99_h", "jct_mean_h", "jct_p99_h"),
                *("pauses", "lost_pct", "violation_h", "worse_than_alone"),
            ),
            row,
            strict=True,
        )
    )
    for name, row in {
        "static-strict": (79.3, 63.2, 226, 69.6, 283, 0, 0, 2953, 0),
        "static": (83.0, 14.0, 119, 20.4, 220, 0, 0, 1373, 0),
        "pool-strict": (87.7, 33.2, 80, 39.6, 177, 0, 0, 3484, 9),
        "pool": (91.2, 3.21, 42.6, 9.62, 157, 0, 0, 2568, 3),
        "quota-restart": (90.5, 1.54, 26.7, 7.99, 169, 3496, 1.1, 289, 0),
        "quota": (90.6, 1.29, 23.5, 7.70, 162, 3428, 0.0, 286, 0),
    }.items()
}
"""Figures of an independent simulation of the same set-up, FIFO within each project."""


def in_proportion(weights: Mapping[str, int], whole: int) -> dict[str, int]:
    """Divide a number in proportion to weights, by the largest remainder."""
    total = sum(weights.values())
    given = {name: whole * weight // total for name, weight in weights.items()}
    order = sorted(weights, key=lambda name: (-(whole * weights[name] % total), name))
    for name in order[: whole - sum(given.values())]:
        given[name] += 1
    return given


def quotas(weights: Mapping[str, int], minimums: Mapping[str, int], nodes: int) -> dict[str, int]:
    """Divide the nodes among the projects, each at least its minimum."""
    fixed: dict[str, int] = {}
    while True:
        free = {name: weight for name, weight in weights.items() if name not in fixed}
        given = in_proportion(free, nodes - sum(fixed.values()))
        low = [name for name in given if given[name] < minimums[name]]
        if not low:
            return {**given, **fixed}
        fixed |= {name: minimums[name] for name in low}


class Philly:
    """The window of the trace, with the set-up that all cases share."""

    def __init__(self, folder: Path, days: int) -> None:
        """Read the trace; fewer days make a faster run without a reference."""
        self.since, self.until = FIRST * DAY, (FIRST + days) * DAY
        self.settled = self.since + (SETTLED * DAY if days > SETTLED else 0)
        self.rows = [
            row
            for row in read_trace(folder / "jobs.csv.gz")
            if row.project != LEFT_OUT and self.since <= row.submit_s < self.until
        ]
        with (folder / "vc_nodes.csv").open() as file:
            self.weights = {row["vc"]: int(row["node num"]) for row in csv.DictReader(file)}
        self.alone: dict[tuple[float, str], Mapping[str, float]] = {}

    def setting(self, case: Case) -> Setting:
        """Return the cluster and the quotas of a case."""
        work = sum(row.gpus * min(row.duration_s, self.until - row.submit_s) for row in self.rows)
        per_node = 1000 * NODE_GPUS * (self.until - self.since) * case.load
        count = -int(-work // per_node)
        largest: dict[str, int] = {}
        for row in self.rows:
            largest[row.project] = max(largest.get(row.project, 0), row.gpus)
        minimums = {
            name: 4 if largest.get(name, 0) > 1000 * NODE_GPUS else 1 for name in self.weights
        }
        power = 2 if case.quotas == "skewed" else 1
        weights = {name: weight**power for name, weight in self.weights.items()}
        given = quotas(weights, minimums, count)
        return Setting(
            nodes=[
                Node(name=f"node-{n:03}", devices=NODE_GPUS, device_memory_mib=Mib(24_576))
                for n in range(count)
            ],
            projects=[
                Project(
                    name=name,
                    quota=MilliGpu(1000 * NODE_GPUS * nodes),
                    min_runtime=case.min_runtime,
                )
                for name, nodes in given.items()
            ],
            since=self.settled,
            until=self.until,
            every=case.every,
            policy=case.shipped,
        )

    def jobs(self, case: Case, seed: int | None) -> list[TraceRow]:
        """Return the jobs of a case."""
        cost = PAUSE_S if case.checkpoints else None
        rows = [replace(row, checkpoint_cost_s=cost) for row in self.rows]
        if seed is not None:
            rows = shuffled(rows, seed)
        if not case.elastic:
            return rows
        chance = random.Random(42)  # selects the same 30 % in every run
        return [
            replace(row, min_workers=1, max_workers=2 * row.gpus // 1000)
            if chance.random() < 0.3
            else row
            for row in rows
        ]

    def replay(
        self,
        case: Case,
        seed: int | None,
        timeline: AllocationTimeline | None,
        progress: Callable[[int], None],
    ) -> Run:
        """Run a case, compared with private clusters of the same load and quotas."""
        setting, key = self.setting(case), (case.load, case.quotas)
        if case.policy != "static" and key not in self.alone:
            private = simulate(self.rows, "static", setting)
            self.alone[key] = private.mean_waits
        alone = self.alone.get(key)
        rows = self.jobs(case, seed)
        run = simulate(
            rows, case.policy, setting, alone=alone, timeline=timeline, progress=progress
        )
        if case.policy == "static":
            self.alone[key] = run.mean_waits
        return run


def ratios(figures: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    """Return our figures relative to the reference's, except where that is zero."""
    return {key: round(figures[key] / value, 3) for key, value in reference.items() if value}


def measured(
    philly: Philly, name: str, note: Callable[[dict[str, Any]], None]
) -> tuple[RunColumn, Setting]:
    """Run a case; record its figures after each seed."""
    case = CASES[name]
    setting = philly.setting(case)
    timeline = AllocationTimeline([p.name for p in setting.projects], philly.settled, philly.until)
    began = time.perf_counter()
    total = len(philly.rows)

    def progress(ended: int) -> None:
        if ended % 5000 == 0:
            print(f"  {name}: {ended} of {total} jobs", file=sys.stderr, flush=True)

    seeds: list[int | None] = [*range(42, 42 + case.seeds)] or [None]
    runs: list[Run] = []
    for seed in seeds:
        seen = None if seed is not None else timeline
        runs.append(philly.replay(case, seed, seen, progress))
        seconds = round(time.perf_counter() - began, 1)
        sums = summed(runs, REFERENCE.get(name, {}) if philly.until == LAST * DAY else {})
        note(
            {
                "nodes": len(setting.nodes),
                "load": case.load,
                **sums,
                "seeds": seeds[: len(runs)],
                "seconds": seconds,
                "commit": commit(),
            }
        )
    timeline.close()
    return RunColumn(
        title=TITLES.get(name, name), results=runs[0].results, timeline=timeline
    ), setting


def summed(runs: Sequence[Run], reference: Mapping[str, float]) -> dict[str, Any]:
    """Return means and spread of a case's runs, and the reference's figures."""
    each = [
        {key: value for key, value in as_json(run.results).items() if value is not None}
        for run in runs
    ]
    figures = {key: round(statistics.mean(one[key] for one in each), 4) for key in each[0]}
    spread = {key: [min(o[key] for o in each), max(o[key] for o in each)] for key in SPREAD}
    return {
        "figures": figures,
        "baseline": reference,
        "ratio": ratios(figures, reference),
        "range": spread if len(runs) > 1 else {},
        "never_ran": runs[0].never_ran,
        "longest_violation_s": max(run.longest_violation_s for run in runs),
    }


SPREAD = ("allocated_pct", "wait_mean_h", "jct_mean_h")
TITLES = {"static": "Static: every project its own part", "quota": "Guaranteed quotas"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected cases and save each result at once."""
    parser = argparse.ArgumentParser(description="Replay October 2017 of Philly.")
    given = os.environ.get("RUNAI_DATA", str(DATA))
    parser.add_argument("--data", type=Path, default=Path(given), help="holds traces/philly")
    parser.add_argument("--run", choices=[*CASES], nargs="+", default=[*CASES])
    parser.add_argument("--days", type=int, default=LAST - FIRST, help="fewer: only printed")
    options = parser.parse_args(arguments)
    folder: Path = options.data / "traces" / "philly"
    if not folder.is_dir():
        print(f"philly is left out: there is no {folder}; name the traces' folder by --data")
        return
    philly = Philly(folder, options.days)
    is_whole = options.days == LAST - FIRST
    columns: dict[str, tuple[RunColumn, Setting]] = {}
    for name in options.run:

        def note(written: dict[str, Any], name: str = name) -> None:
            print(name, json.dumps(written, indent=1), flush=True)
            if is_whole:
                keep(name, written)

        columns[name] = measured(philly, name, note)
    if is_whole and {"static", "quota"} <= columns.keys():
        setting = columns["quota"][1]
        write_picture(
            PICTURE,
            "Microsoft Philly, October 2017, load 0.9: from static parts to guaranteed quotas",
            [columns["static"][0], columns["quota"][0]],
            {p.name: p.quota for p in setting.projects if isinstance(p.quota, int)},
            1000 * NODE_GPUS * len(setting.nodes),
        )


ROWS = {
    "static-strict": "private parts, strictly in order",
    "static": "private parts",
    "pool-strict": "one pool, strictly in order",
    "pool": "one pool, no quotas",
    "quota": "guaranteed quotas",
    "protected": "the same, jobs protected for their first hour",
    "quota-restart": "quotas, jobs without checkpoints start anew",
    "quota-without-moves": "quotas, and nothing moves",
    "unbounded-moves": "quotas, moves without bounds",
    "quota-at-once": "guaranteed quotas, decided at each event",
    "elastic": "quotas, 30 % of the jobs elastic",
    "skewed-static": "quotas squared: private parts",
    "skewed-quota": "quotas squared: guaranteed",
    "0.7-static": "load 0.7: private parts",
    "0.7-pool": "load 0.7: one pool",
    "0.7-quota": "load 0.7: guaranteed quotas",
    "1.1-static": "load 1.1: private parts",
    "1.1-pool": "load 1.1: one pool",
    "1.1-quota": "load 1.1: guaranteed quotas",
}


def table(runs: Mapping[str, Any]) -> str:
    """Return the results as a table for the docs."""
    heads = "allocated | useful | mean wait | 99 in 100 wait at most | submission to end | pauses"
    lines = [f"| | {heads} | promises broken | worse off than alone |", "|" + " --- |" * 9]
    for name, words in ROWS.items():
        if name in runs:
            f = runs[name]["figures"]
            lines.append(
                f"| {words} | {f['allocated_pct']:.1f} % | {f['useful_pct']:.1f} %"
                f" | {f['wait_mean_h']:.2f} | {f['wait_p99_h']:.1f} | {f['jct_mean_h']:.2f}"
                f" | {f['pauses']:,.0f} | {f['violation_h']:,.0f} | {f['worse_than_alone']:g} |"
            )
    return "\n".join(lines)


def write_table(runs: Mapping[str, Any]) -> None:
    """Write the table to its page."""
    before, mark, rest = PAGE.read_text().partition("<!-- philly -->\n")
    after = rest.partition("<!-- end philly -->")[2]
    PAGE.write_text(f"{before}{mark}{table(runs)}\n<!-- end philly -->{after}")


def keep(name: str, written: Mapping[str, Any]) -> None:
    """Save one case in the results file."""
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    runs = {**saved.get("runs", {}), name: written}
    result: dict[str, Any] = {
        **machine(),
        "source": "Jeon et al., ATC'19: msr-fiddle/philly-traces (CC-BY-4.0)",
    }
    runs = {case: runs[case] for case in CASES if case in runs}
    result["runs"] = runs
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    write_table(runs)


if __name__ == "__main__":
    main()
