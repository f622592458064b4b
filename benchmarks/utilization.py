"""A month of notebooks and jobs: what is allocated, and what is kept busy.

    python benchmarks/utilization.py

Four teams of five researchers share 32 GPUs, eight of which are each team's quota. Each of five
generated months is replayed three times: with eight whole GPUs of its own for each team, with eight
that notebooks share by fractions, and under this platform's policy. Writes the averages to
results/utilization.json and docs/pictures/utilization.svg.

Assumptions, with the published figures behind them:

    notebooks  a researcher has one open for nine hours of each working day, asks for half a GPU,
               and keeps 10.5 % of a GPU busy: the mean of all workloads of Alibaba's PAI (Weng et
               al., NSDI 2022; affinode.io/case-studies/alibaba-gpu-v2020)
    jobs       sizes and durations of Microsoft's Philly (Jeon et al., ATC 2019): 90 % have one GPU,
               median 25 minutes, 1 % beyond six days; here a week at most. A job keeps its GPUs
               busy for 51 % of a time below six hours, 75 % above a day, and 63 % between
               (affinode.io/case-studies/msft-philly-dataset), and saves checkpoints
    load       in each week one team submits half of all jobs, in turn: deadlines. Notebooks and
               jobs together ask for 90 % of the GPUs
"""

import json
import random
from collections.abc import Iterator, Sequence
from html import escape
from statistics import fmean
from typing import Final

from machine import ROOT, measured

from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node, Project
from runai.hub_service.simulation.engine import Setting, simulate
from runai.hub_service.simulation.policies import PolicyName
from runai.hub_service.simulation.results import as_json
from runai.hub_service.simulation.traces import TraceRow

RESULTS: Final = ROOT / "benchmarks/results/utilization.json"
PICTURE: Final = ROOT / "docs/pictures/utilization.svg"

HOUR, DAY = 3600, 86400
MONTHS, DAYS, TEAMS, MEMBERS, QUOTA = 5, 28, 4, 5, 8
GPUS: Final = TEAMS * QUOTA
LOAD: Final = 0.9
NOTEBOOK_PCT: Final = 100 * 0.105 / 0.5
RESUME_S: Final = 60

SIZES: Final = ((1, 0.903), (2, 0.020), (4, 0.036), (8, 0.041))
"""GPUs of a job, and the part of the jobs that ask for so many."""
PARTS: Final = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
DURATIONS: Final = {
    1: (1, 62, 218, 1478, 3369, 12407, 39131, 528308),
    2: (2, 12, 16, 31, 60441, 269690, 455941, 1399002),
    4: (2, 82, 373, 13175, 94897, 271806, 461832, 1535878),
    8: (2, 88, 353, 13528, 147180, 426702, 674945, 1792380),
}
"""Seconds that the given parts of the jobs of a size do not exceed."""

NAMES: Final[dict[PolicyName, str]] = {
    "static-whole": "Whole GPUs of its own for each team",
    "static": "The same, notebooks share GPUs",
    "quota": "jupyter-runai: guaranteed quotas",
}


def notebooks(chance: random.Random) -> Iterator[TraceRow]:
    """Yield the notebooks of all working days."""
    for day in range(DAYS):
        if day % 7 >= 5:
            continue
        for person in range(TEAMS * MEMBERS):
            yield TraceRow(
                job=f"notebook-{day:02}-{person:02}",
                project=f"team-{person % TEAMS}",
                submit_s=int(day * DAY + chance.uniform(8.5, 10.5) * HOUR),
                gpus=500,
                duration_s=9 * HOUR,
                kind="session",
                busy_pct=NOTEBOOK_PCT,
            )


def jobs(chance: random.Random, gpu_hours: float) -> Iterator[TraceRow]:
    """Yield jobs until they ask for as many GPU-hours."""
    number, left = 0, gpu_hours * HOUR
    while left > 0:
        (gpus,) = chance.choices([n for n, _ in SIZES], [part for _, part in SIZES])
        lasts = min(_quantile(DURATIONS[gpus], chance.random()), 7 * DAY)
        day = chance.randrange(DAYS)
        urgent = day // 7 % TEAMS
        team = urgent if chance.random() < 1 / 2 else chance.randrange(TEAMS)
        yield TraceRow(
            job=f"job-{number:05}",
            project=f"team-{team}",
            submit_s=int(day * DAY + chance.triangular(8, 22, 15) * HOUR),
            gpus=1000 * gpus,
            duration_s=lasts,
            checkpoint_cost_s=RESUME_S,
            busy_pct=51 if lasts < 6 * HOUR else 63 if lasts < DAY else 75,
        )
        number += 1
        left -= gpus * lasts


def _quantile(values: Sequence[int], part: float) -> int:
    """Return the value at a part, interpolated between the logarithms of the given ones."""
    at = max(n for n, begin in enumerate(PARTS) if begin <= part)
    if at == len(PARTS) - 1:
        return values[-1]
    how_far = (part - PARTS[at]) / (PARTS[at + 1] - PARTS[at])
    return round(values[at] * (values[at + 1] / values[at]) ** how_far)


def month(seed: int) -> list[TraceRow]:
    """Return a month's notebooks and jobs."""
    chance = random.Random(seed)
    opened = list(notebooks(chance))
    notebook_hours = sum(row.gpus / 1000 * row.duration_s / HOUR for row in opened)
    return [*opened, *jobs(chance, LOAD * GPUS * 24 * DAYS - notebook_hours)]


def draw(figures: dict[str, dict[str, float]]) -> str:
    """Return an SVG: for each policy a bar of what is allocated, and in it what is utilized."""
    width, left, step, top = 860, 300, 64, 64
    scale = (width - left - 30) / 100
    height = top + step * len(figures) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Arial, Helvetica, sans-serif">',
        "<title>Allocated and utilized GPU-time of the same month</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(16, 28, f"The same month of {TEAMS * MEMBERS} people on {GPUS} GPUs", 16, "bold"),
        _text(16, 48, "dark: GPU-time kept busy · light: allocated · grey: not allocated", 12),
    ]
    for n, (name, f) in enumerate(figures.items()):
        y = top + n * step
        wait = f"work waits {f['wait_mean_h']:.1f} h on average"
        parts += [
            _text(16, y + 18, NAMES[name], 13, "bold"),  # type: ignore[index]
            _text(16, y + 36, wait, 12),
            _bar(left, y, 100 * scale, "#e6e6e6"),
            _bar(left, y, f["allocated_pct"] * scale, "#9ecae1"),
            _bar(left, y, f["utilized_pct"] * scale, "#1f6f4a"),
            _text(left + 8, y + 25, f"{f['utilized_pct']:.0f} % utilized", 13, "bold", "#ffffff"),
            _text(
                left + f["allocated_pct"] * scale + 8,
                y + 25,
                f"{f['allocated_pct']:.0f} % allocated",
                13,
            ),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="40" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, size: int, weight: str = "normal", fill: str = "#1a1a1a"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}">'
        f"{escape(text)}</text>"
    )


def main() -> None:
    """Replay the month under each policy; print, write and draw the figures."""
    found = measured()
    nodes = [Node(name=f"n{n}", devices=8, device_memory_mib=Mib(81_920)) for n in range(GPUS // 8)]
    projects = [Project(name=f"team-{n}", quota=MilliGpu(1000 * QUOTA)) for n in range(TEAMS)]
    setting = Setting(nodes=nodes, projects=projects, since=0, until=DAYS * DAY)
    months = [month(seed) for seed in range(1, MONTHS + 1)]
    figures: dict[str, dict[str, float]] = {}
    spread: dict[str, list[float]] = {}
    for policy, words in NAMES.items():
        runs = [as_json(simulate(rows, policy, setting).results) for rows in months]
        figures[policy] = {key: round(fmean(run[key] or 0 for run in runs), 2) for key in runs[0]}
        spread[policy] = sorted(round(run["utilized_pct"] or 0, 1) for run in runs)
        print(f"{words}: {json.dumps(figures[policy])}; utilized {spread[policy]}", flush=True)
    result = {**found, "figures": figures, "utilized_pct_of_each_month": spread}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    PICTURE.write_text(draw(figures))


if __name__ == "__main__":
    main()
