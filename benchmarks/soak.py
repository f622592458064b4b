"""Simulate 30 days of a lab with 100,000 jobs in virtual time, to find growth of the service.

The complete service, behind real HTTP, with both databases (`tests/endurance`); processes and time
are faked. `python benchmarks/soak.py --keep` writes `benchmarks/results/soak.json`: memory and
counts at regular intervals, and if the last quarter exceeds an earlier one. Exits 1 if it does.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
from machine import ROOT, measured

from runai.hub_service.clusters.states.retention import RetentionPolicy

sys.path.insert(0, str(ROOT / "tests"))

RESULTS = ROOT / "benchmarks/results/soak.json"
MIB = 1 << 20
FLAT = 1.05
"""Tolerated growth from the second to the last quarter: the state varies with the time of day."""


def play(
    jobs: int, days: float, most: int, measurements: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the simulation; return the measured states and the errors."""
    from endurance.counts import live_objects, sizes  # noqa: PLC0415  after the path is set
    from endurance.month import Lab, Month  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    process, began, seen = psutil.Process(), time.perf_counter(), list[dict[str, Any]]()

    def measure(month: Month) -> None:
        found = live_objects()
        seen.append(
            {
                "day": round(month.clock.true / 86400, 2),
                "jobs": month.submitted,
                "rss_mib": round(process.memory_info().rss / MIB, 1),
                "objects": sum(found.values()),
                "own_objects": sum(n for kind, n in found.items() if kind != "others"),
                "kept": sizes(month),
                "took_s": round(time.perf_counter() - began, 1),
                "processor_s": round(time.process_time(), 1),
            }
        )
        last = seen[-1]
        print(
            f"day {last['day']:5.2f}: {last['jobs']:6} jobs, {last['rss_mib']:6.1f} MiB,"
            f" {last['objects']} objects, {last['kept']['rows']} workloads, {last['took_s']} s",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="runai-soak-") as place:
        lab = Lab(
            jobs=jobs,
            days=days,
            retention=RetentionPolicy(max_finished=most),
            inspections=measurements,
        )
        month = Month(lab, Path(place))
        month.play(measure)
        seen[-1]["disk_mib"] = {
            name: round((Path(place) / name).stat().st_size / MIB, 1)
            for name in ("cluster.sqlite", "ledger.sqlite")
        }
        return seen, month.machine.violations


def quarters(seen: Sequence[dict[str, Any]], what: str) -> list[float]:
    """Return the averages of the four quarters."""
    of = max(1, len(seen) // 4)
    parts = (seen[n * of : (n + 1) * of if n < 3 else None] for n in range(4))
    return [round(mean(one[what] for one in part), 1) for part in parts]


def main() -> int:
    """Run the simulation and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--most", type=int, default=1_000, help="finished workloads kept at most")
    parser.add_argument("--looks", type=int, default=40)
    parser.add_argument("--remark", default="", help="kept beside the figures")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/soak.json")
    options = parser.parse_args()
    about, began = measured(), time.perf_counter()
    seen, wrong = play(options.jobs, options.days, options.most, options.looks)
    by_quarter = {what: quarters(seen, what) for what in ("rss_mib", "objects", "own_objects")}
    grows = [what for what, (_, second, _, last) in by_quarter.items() if last > FLAT * second]
    result = {
        "what": "a lab in virtual time: service, HTTP, SQLite; processes and time faked",
        **about,
        "jobs": options.jobs,
        "days": options.days,
        "kept_at_most": options.most,
        "by_quarter": by_quarter,
        "grows": grows,
        "wrong": wrong,
        "took_s": round(time.perf_counter() - began, 1),
        "processor_s": round(time.process_time(), 1),
        **({"remark": options.remark} if options.remark else {}),
        "looks": seen,
    }
    print(json.dumps({name: part for name, part in result.items() if name != "looks"}, indent=2))
    if options.keep:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(grows or wrong))


if __name__ == "__main__":
    sys.exit(main())
