"""Measure how long a decision takes, beside KAI-Scheduler's own benchmarks of the same shapes.

    python benchmarks/decide.py             # prints; writes results/decide.json and the picture
    python benchmarks/decide.py --only many # shapes with this in their name; writes nothing

One core, CPython; from the decoded JSON object to the plan object, the best of some rounds in CPU
time. KAI's figures (Go, two cores) were measured once, in process, on a machine of this kind,
without the fixed 100 ms poll of each: orders of magnitude. `steady` runs in memory: changes are
applied to an index, then `decide` runs. The growth curves show the same shapes from 10 to 5,000
nodes; the picture is docs/pictures/decide.svg.
"""

import argparse
import gc
import json
import math
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from machine import measured

from runai.hub_service.scheduler import (
    SHIPPED,
    ClusterIndex,
    MilliGpu,
    Node,
    Project,
    Snapshot,
    SnapshotChanges,
    Worker,
    WorkerState,
    Workload,
    decide,
)
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "decide.json"
PICTURE = HERE.parent / "docs" / "pictures" / "decide.svg"
GROWTH = (10, 30, 100, 300, 1000, 2000, 5000)
ROUNDS = 9

Json = dict[str, Any]


def job(
    name: str, project: str, age: int, *, gpus: int = 1, workers: int = 1, **at: object
) -> Json:
    """Return a job with workers that request whole GPUs."""
    worker_rows = [{"name": f"{name}-{rank}", "gpus": gpus, **at} for rank in range(workers)]
    return {"name": name, "project": project, "submitted": age, "workers": worker_rows}


def running(count: int, project: str) -> list[Json]:
    """Return running jobs of one GPU that fill the nodes in order."""
    return [
        job(f"r{i:06}", project, i, state="running", node=f"n{i // 8:05}", devices=[i % 8])
        for i in range(count)
    ]


def waiting(count: int, projects: str) -> list[Json]:
    """Return queued jobs of one GPU, the projects in turn."""
    return [job(f"q{i:06}", projects[i % len(projects)], i) for i in range(count)]


def world(nodes: int, projects: list[Json], workloads: list[Json]) -> Json:
    """Return a cluster of nodes with 8 GPUs each."""
    described = [
        {"name": f"n{i:05}", "devices": 8, "device_memory_mib": 81920} for i in range(nodes)
    ]
    return {"now": 10**6, "nodes": described, "projects": projects, "workloads": workloads}


def two(quota_a: int, quota_b: int, **a: object) -> list[Json]:
    """Return two projects, `a` and `b`."""
    return [{"name": "a", "quota": quota_a, **a}, {"name": "b", "quota": quota_b}]


def place(nodes: int) -> Json:
    """Five one-GPU jobs a node, of two projects; all nodes are empty."""
    return world(nodes, two(4 * nodes, 4 * nodes), waiting(5 * nodes, "ab"))


def full_cycle(nodes: int) -> Json:
    """Five one-GPU jobs a node, half of them running."""
    half = 5 * nodes // 2
    return world(
        nodes, two(4 * nodes, 4 * nodes), [*running(half, "a"), *waiting(5 * nodes - half, "ab")]
    )


def reclaim_many(nodes: int) -> Json:
    """Jobs of the owner reclaim every GPU, one by one, from a project without quota."""
    jobs = [*running(8 * nodes, "a"), *waiting(8 * nodes, "b")]
    return world(nodes, two(0, 8 * nodes, weight=0), jobs)


def reclaim_protected(nodes: int) -> Json:
    """As `reclaim_many`, but the half that would be evicted first has only just started."""
    half = 4 * nodes
    jobs = running(8 * nodes, "a")
    for number, young in enumerate(jobs):
        young["workers"][0]["started"] = 0 if number < half else 10**6 - 10
    owners = two(0, 8 * nodes, weight=0, min_runtime=3600)
    return world(nodes, owners, [*jobs, *waiting(8 * nodes, "b")])


def reclaim_gang(nodes: int) -> Json:
    """One gang of half the cluster, in workers of 8 GPUs, of the owner."""
    gang = job("gang", "b", 9, gpus=8, workers=nodes // 2)
    return world(nodes, two(0, 8 * nodes, weight=0), [*running(8 * nodes, "a"), gang])


def hopeless_gang(nodes: int) -> Json:
    """A gang of 80 GPUs, one more than may be reclaimed: nothing may stop."""
    gang = job("gang", "b", 9, gpus=8, workers=10)
    return world(nodes, two(8 * nodes - 79, 80), [*running(8 * nodes, "a"), gang])


def fill(nodes: int) -> Json:
    """As many one-GPU jobs as there are GPUs; all nodes are empty."""
    return world(nodes, two(4 * nodes, 4 * nodes), waiting(8 * nodes, "ab"))


def moves(nodes: int) -> Json:
    """The shipped policy: two of four equal projects hold 7 of 8 GPUs, all four wait for pairs."""
    savers = [
        job(f"r{i:06}", "ab"[i % 2], i, state="running", node=f"n{i // 7:05}", devices=[i % 7])
        | {"saves": True}
        for i in range(7 * nodes)
    ]
    pairs = [job(f"q{i:06}", "abcd"[i % 4], 10**5 + i, gpus=2) for i in range(5 * nodes // 2)]
    projects = [{"name": name, "quota": 2 * nodes} for name in "abcd"]
    policy = {
        "phases": list(SHIPPED.phases),
        "moves": SHIPPED.moves,
        "max_moves": SHIPPED.max_moves,
        "max_moves_per_hour": SHIPPED.max_moves_per_hour,
    }
    return world(nodes, projects, [*savers, *pairs]) | {"policy": policy}


def scattered_moves(nodes: int) -> Json:
    """As `moves`, but the jobs started in no order of nodes."""
    described, dice = moves(nodes), random.Random(1)
    for running_job in described["workloads"][: 7 * nodes]:
        running_job["workers"][0]["started"] = dice.randrange(10**5)
    return described


class Row(NamedTuple):
    """A row of the table: shape, number of nodes, KAI's seconds, and our goal in seconds."""

    shape: Callable[[int], Json]
    nodes: int
    kai: float | None
    reach: float | None
    rounds: int = ROUNDS


TABLE = [
    Row(place, 100, 0.103, 0.05),
    Row(full_cycle, 100, 0.064, 0.04),
    Row(reclaim_many, 100, 3.5, 0.1),
    Row(reclaim_many, 200, 16.3, 0.2),
    Row(reclaim_many, 500, 167.0, 0.5),
    Row(reclaim_protected, 400, None, 0.5),
    Row(reclaim_gang, 200, 1.9, 0.2),
    Row(reclaim_gang, 500, 8.6, 0.5),
    Row(hopeless_gang, 100, 23.5, 0.1),
    Row(hopeless_gang, 200, 122.0, 0.2),
    Row(fill, 500, None, 0.5),
    Row(moves, 2000, None, 1.5),
    Row(scattered_moves, 100, None, None),
    Row(scattered_moves, 2000, None, None, rounds=1),
]


def timed(make: Callable[[], Json], rounds: int) -> tuple[float, Counter[str]]:
    """Return the best CPU seconds of some rounds, and the number of decisions by kind."""
    best, kinds = math.inf, Counter[str]()
    for _ in range(rounds):
        decoded = make()
        gc.collect()
        gc.disable()  # as `runai schedule` does for a snapshot
        began = time.process_time()
        plan = decide(snapshot_from_json(decoded))
        best = min(best, time.process_time() - began)
        gc.enable()
        kinds = Counter(decision.kind for decision in plan.decisions)
    return best, kinds


def measure_table(only: str) -> list[Json]:
    """Measure each row of the table."""
    measured = []
    for row in TABLE:
        name = f"{row.shape.__name__}, {row.nodes} nodes"
        if only not in name:
            continue
        seconds, kinds = timed(lambda row=row: row.shape(row.nodes), row.rounds)
        ratio = round(row.kai / seconds, 1) if row.kai else None
        beside = f"KAI {row.kai * 1000:8.0f} ms, {ratio:6} times ours" if row.kai else ""
        goal = f"(to reach {row.reach * 1000:4.0f})" if row.reach else "(no goal)"
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(
            f"{name:26} {seconds * 1000:7.1f} ms  {goal:15} {beside:38} {counts}",
            flush=True,
        )
        measured.append(
            {
                "work": name,
                "value_s": round(seconds, 4),
                "reach_s": row.reach,
                "baseline_kai_s": row.kai,
                "ratio": ratio,
                "decisions": dict(sorted(kinds.items())),
            }
        )
    return measured


# ---- the steady cycle

_PROJECTS = 50


def steady(nodes: int) -> Json:
    """8 running jobs a node and half as many waiting; 600 of 48,000 change, then `decide`."""
    dice = random.Random(1)

    def runs(number: int) -> Workload:
        worker = Worker(
            name=f"r{number:06}-0",
            gpus=MilliGpu(1000),
            state=WorkerState.RUNNING,
            node=f"n{number // 8:05}",
            devices=(number % 8,),
        )
        project = f"p{number * _PROJECTS // (8 * nodes):02}"
        return Workload(name=f"r{number:06}", project=project, submitted=number, workers=(worker,))

    def waits(number: int) -> Workload:
        gpus, workers = dice.choice([(1, 1)] * 12 + [(2, 1), (4, 1), (8, 1), (8, 2), (8, 4)])
        queued_workers = tuple(
            Worker(name=f"q{number:06}-{rank}", gpus=MilliGpu(1000 * gpus))
            for rank in range(workers)
        )
        return Workload(
            name=f"q{number:06}",
            project=f"p{dice.randrange(_PROJECTS):02}",
            submitted=10**5 + number,
            workers=queued_workers,
        )

    index = ClusterIndex(
        Snapshot(
            now=10**6,
            nodes=tuple(Node(name=f"n{i:05}", devices=8) for i in range(nodes)),
            projects=tuple(
                Project(name=f"p{i:02}", quota=MilliGpu(8000 * nodes // _PROJECTS))
                for i in range(_PROJECTS)
            ),
            workloads=(
                *[runs(number) for number in range(8 * nodes)],
                *[waits(number) for number in range(4 * nodes)],
            ),
        )
    )
    decide(index)
    gc.collect()
    changed = max(1, 8 * nodes * 300 // 40_000)
    best = applied = math.inf
    kinds = Counter[str]()
    for turn in range(ROUNDS):
        departures = tuple(f"r{i:06}" for i in range(turn * changed, (turn + 1) * changed))
        arrivals = tuple(waits(10**5 + turn * changed + i) for i in range(changed))
        began = time.process_time()
        index.apply(SnapshotChanges(now=10**6 + turn, removed=departures, workloads=arrivals))
        between = time.process_time()
        plan = decide(index)
        applied = min(applied, between - began)
        best = min(best, time.process_time() - began)
        kinds = Counter(decision.kind for decision in plan.decisions)
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "value_s": round(best, 4),
        "of_which_applying_s": round(applied, 4),
        "rss_mib": mib,
        "decisions": dict(sorted(kinds.items())),
    }


# ---- growth


def measure_growth() -> dict[str, dict[int, float]]:
    """Measure each shape at every number of nodes."""
    curves: dict[str, dict[int, float]] = {}
    for shape in (place, fill, reclaim_many, reclaim_gang, hopeless_gang):
        curve = curves[shape.__name__] = {}
        for nodes in GROWTH:
            curve[nodes] = round(
                timed(lambda s=shape, n=nodes: s(n), 1 if nodes > 300 else 3)[0], 5
            )
        print(
            f"{shape.__name__:15}",
            "  ".join(f"{n}: {s:.3f} s" for n, s in curve.items()),
            flush=True,
        )
    curves["steady"] = {nodes: steady(nodes)["value_s"] for nodes in GROWTH}
    print(f"{'steady':15}", "  ".join(f"{n}: {s:.3f} s" for n, s in curves["steady"].items()))
    return curves


_COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#333333"]


def draw(curves: dict[str, dict[int, float]]) -> str:
    """Draw the curves on logarithmic axes, with a line of slope one to compare."""
    left, top, width, height = 70, 40, 520, 360
    low, high = -4.0, 1.5

    def x(nodes: float) -> float:
        return left + (math.log10(nodes) - 1) / (math.log10(5000) - 1) * width

    def y(seconds: float) -> float:
        return top + (high - math.log10(max(seconds, 1e-4))) / (high - low) * height

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 150} '
            f'{top + height + 50}" font-family="DejaVu Sans, Arial, sans-serif" font-size="12">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
        (
            f'<text x="{left}" y="22" font-size="15">Seconds of one decision, by the size of the '
            "cluster (8 GPUs a node)</text>"
        ),
    ]
    for power in range(-4, 2):
        at = y(10.0**power)
        parts.append(f'<path d="M{left} {at:.1f}h{width}" stroke="#e6e6e6"/>')
        parts.append(
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>'
        )
    for nodes in GROWTH:
        at, below = x(nodes), top + height + 18
        parts.append(f'<text x="{at:.1f}" y="{below}" text-anchor="middle">{nodes}</text>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">nodes</text>'
    )
    slope = f"M{x(10):.1f} {y(0.0005):.1f}L{x(5000):.1f} {y(0.25):.1f}"
    parts.append(f'<path d="{slope}" stroke="#999" stroke-dasharray="4 4"/>')
    labels: list[float] = []
    for colour, curve in zip(_COLOURS, curves.values(), strict=True):
        points = " ".join(f"{x(n):.1f},{y(s):.1f}" for n, s in curve.items())
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
    ends = sorted((y(list(curve.values())[-1]), name) for name, curve in curves.items())
    ends.append((y(0.25), "linear"))
    for end, name in sorted(ends):
        at = max([end, *(label + 14 for label in labels[-1:])])
        labels.append(at)
        index = list(curves).index(name) if name in curves else -1
        colour = _COLOURS[index] if index >= 0 else "#999"
        text = name.replace("_", " ")
        parts.append(f'<text x="{left + width + 8}" y="{at + 4:.1f}" fill="{colour}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure and print; save the figures of a complete run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="measure shapes with this in their name")
    only: str = parser.parse_args().only
    environment = measured()
    table = measure_table(only)
    if only:
        return
    in_memory = steady(5000)
    steady_ms = in_memory["value_s"] * 1000
    print(f"{'steady, 5000 nodes':26} {steady_ms:7.1f} ms  (to reach  500)  {in_memory}")
    curves = measure_growth()
    figures = {
        **environment,
        "table": table,
        "steady": {"reach_s": 0.5, "reach_mib": 1536, **in_memory},
        "growth_s": curves,
    }
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    PICTURE.write_text(draw(curves))


if __name__ == "__main__":
    main()
