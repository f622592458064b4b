"""Time and memory to replay 200,000 jobs of a trace.

    python benchmarks/replay.py --data DIR

Repeats the month of Philly (source: see `philly.py`), each time a month later, under guaranteed
quotas, without explanations, as in every simulation. Writes benchmarks/results/replay.json: the
seconds in total, and the seconds and the resident memory after every 20,000 ended jobs.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import philly
import psutil
from machine import commit, machine

from runai.hub_service.simulation.engine import simulate
from runai.hub_service.simulation.results import as_json
from runai.hub_service.simulation.traces import TraceRow

RESULTS = Path(__file__).parent / "results" / "replay.json"
JOBS = 200_000
REACH_S = 15 * 60
EACH = 20_000


def repeated(rows: Sequence[TraceRow], jobs: int, period: int) -> list[TraceRow]:
    """Return jobs: the trace, repeated with each repetition one period later."""
    more = [
        replace(row, job=f"{row.job}-{again}", submit_s=row.submit_s + again * period)
        for again in range(-(-jobs // len(rows)))
        for row in rows
    ]
    return more[:jobs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay and save the figures."""
    parser = argparse.ArgumentParser(description="Replay 200,000 jobs.")
    given = os.environ.get("RUNAI_DATA", str(philly.DATA))
    parser.add_argument("--data", type=Path, default=Path(given), help="holds traces/philly")
    parser.add_argument("--jobs", type=int, default=JOBS, help="fewer: only printed")
    options = parser.parse_args(arguments)
    folder: Path = options.data / "traces" / "philly"
    if not folder.is_dir():
        print(f"the replay is left out: there is no {folder}; name the traces' folder by --data")
        return
    month = philly.Philly(folder, philly.LAST - philly.FIRST)
    case = philly.CASES["quota"]
    rows = repeated(month.jobs(case, None), options.jobs, month.until - month.since)
    setting = replace(month.setting(case), until=rows[-1].submit_s)
    process = psutil.Process()
    began, worked = time.perf_counter(), time.process_time()
    course: list[dict[str, float]] = []

    def progress(ended: int) -> None:
        if ended % EACH == 0:
            memory = round(process.memory_info().rss / 2**20)
            spent = round(time.perf_counter() - began, 1)
            course.append({"jobs": ended, "seconds": spent, "memory_mib": memory})
            print(course[-1], file=sys.stderr, flush=True)

    # Without the comparison to private clusters, which needs a second replay.
    run = simulate(rows, case.policy, setting, alone={}, progress=progress)
    seconds = round(time.perf_counter() - began, 1)
    worked = round(time.process_time() - worked, 1)
    written = {
        **machine(),
        "source": "Jeon et al., ATC'19: msr-fiddle/philly-traces (CC-BY-4.0)",
        "commit": commit(),
        "jobs": len(rows),
        "nodes": len(setting.nodes),
        "seconds": seconds,
        "processor_seconds": worked,
        "to_reach": REACH_S,
        "ratio": round(seconds / REACH_S, 3),
        "course": course,
        "figures": as_json(run.results),
    }
    print(json.dumps(written, indent=1))
    if options.jobs == JOBS:
        RESULTS.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
