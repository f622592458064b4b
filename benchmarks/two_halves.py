"""Two trainings on halves of one GPU at once, compared with the whole GPU in sequence.

    python benchmarks/two_halves.py     # prints, and writes benchmarks/results/two_halves.json

A real platform with one simulated GPU, and real processes. One CPU core stands for the GPU: both
trainings are pinned to it, so that they slow each other down whenever both work, like processes on
a shared GPU. Each alternates work and an equal wait for data, so that alone it keeps half of the
core busy. The baseline is the same pair in sequence. For a real GPU see `gpu_sharing.py`.
"""

import json
import sys
import time
from pathlib import Path

from machine import measured
from platforms import as_user, seconds_until, simulated

from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest

RESULTS = Path(__file__).parent / "results" / "two_halves.json"
ROUNDS = 40
TRAINING = f"""
import os, time
os.sched_setaffinity(0, {{max(os.sched_getaffinity(0))}})
for _ in range({ROUNDS}):
    goal = time.process_time() + 0.25
    while time.process_time() < goal:
        sum(range(1000))
    time.sleep(0.25)
"""
"""One round: a quarter of a second of CPU time, longer on a shared core, and then a wait."""


def run_two(client: Client, gpus: str, names: tuple[str, str]) -> tuple[float, float]:
    """Run both trainings; return the seconds until both ended, and the GPU's mean utilization."""
    began = time.perf_counter()
    ids = []
    for name in names:
        request = SubmitRequest(name=name, gpus=gpus, command=[sys.executable, "-c", TRAINING])
        ids += [view.id for view in client.submit(request).workloads]
    seconds_until(lambda: all(client.workload(i).state == "succeeded" for i in ids), 600)
    seconds = time.perf_counter() - began
    busy = 0.0
    for i in ids:
        view = client.workload(i)
        assert view.started is not None
        assert view.finished is not None
        ran = (view.finished - view.started).total_seconds()
        busy += (view.measured.utilized_average or 0.0) * ran
    return seconds, busy / seconds


def main() -> None:
    """Measure both variants and save the figures."""
    environment = measured()
    with simulated(1) as (root, folder):
        bob = as_user(root, folder / "data", "bob", "vision")
        alone_s, alone_busy = run_two(bob, "1", ("first", "second"))
        shared_s, shared_busy = run_two(bob, "0.5", ("left", "right"))
    result = {
        **environment,
        "gpu": "simulated by one processor core",
        "both_finished_s": {
            "value": round(shared_s, 1),
            "baseline": round(alone_s, 1),
            "ratio": round(shared_s / alone_s, 2),
        },
        "gpu_utilization": {
            "value": round(shared_busy, 3),
            "baseline": round(alone_busy, 3),
            "ratio": round(shared_busy / alone_busy, 2),
        },
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
