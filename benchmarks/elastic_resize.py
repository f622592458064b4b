"""Pause of a training at a resize, compared with checkpoint-and-restart and torchrun.

Trains a model of 8.9 million parameters with AdamW (107 MB of state) on the CPU and resizes it
1 → 2 → 1. A pause is the time from the end of the last update before to the end of the first one
after, that update included. Writes `results/elastic_resize.json`; six minutes on an idle machine.

    python benchmarks/elastic_resize.py [--times 9] [--restarts 3] [--output FILE]
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from machine import ROOT, measured
from resized_training import GLOBAL_BATCH, SAMPLES, WIDTHS

from runai.elastic.job_directory import JobDirectory

TRAINING = Path(__file__).with_name("resized_training.py")
STEADY_UPDATES = 6
PATIENCE_S = 240.0
OUTPUT = ROOT / "benchmarks" / "results" / "elastic_resize.json"

Step = dict[str, Any]


def steps_of(directory: Path) -> list[Step]:
    """Return the updates recorded by all ranks, by time."""
    lines = [
        line for path in directory.glob("steps-*.jsonl") for line in path.read_text().split("\n")
    ]
    found: list[Step] = [json.loads(line) for line in lines if line.endswith("}")]
    return sorted(found, key=lambda step: float(step["at"]))


def pauses(directory: Path) -> dict[str, list[float]]:
    """Return the seconds of each pause, by the change of the number of ranks."""
    steps = [step for step in steps_of(directory) if step["rank"] == 0]
    found: dict[str, list[float]] = {}
    for last, first in itertools.pairwise(steps):
        if last["ranks"] != first["ranks"]:
            change = f"{last['ranks']} to {first['ranks']}"
            found.setdefault(change, []).append(round(first["at"] - last["at"], 3))
    return found


def usual_step(directory: Path) -> dict[str, float]:
    """Return the median seconds of an update, by the number of ranks."""
    steps = [step for step in steps_of(directory) if step["rank"] == 0]
    times: dict[str, list[float]] = {}
    for last, step in itertools.pairwise(steps):
        if last["ranks"] == step["ranks"]:
            times.setdefault(str(step["ranks"]), []).append(step["at"] - last["at"])
    return {ranks: round(statistics.median(values), 3) for ranks, values in times.items()}


def miscounted(directory: Path) -> dict[str, int]:
    """Return the number of missing and duplicate samples in a finished epoch."""
    epochs: dict[int, Counter[int]] = {}
    updates_each = SAMPLES // GLOBAL_BATCH
    last = 0
    for step in steps_of(directory):
        epochs.setdefault((step["update"] - 1) // updates_each, Counter()).update(step["samples"])
        last = max(last, step["update"])
    whole = [counts for epoch, counts in epochs.items() if (epoch + 1) * updates_each <= last]
    return {
        "epochs": len(whole),
        "lost": sum(SAMPLES - len(counts) for counts in whole),
        "repeated": sum(counts.total() - len(counts) for counts in whole),
    }


def wait_for_updates(directory: Path, ranks: int, count: int, after: float) -> None:
    """Wait until `ranks` ranks made `count` updates after an instant."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        seen = [s for s in steps_of(directory) if s["rank"] == 0 and s["at"] > after]
        if sum(step["ranks"] == ranks for step in seen) >= count:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{directory}: no {count} updates with {ranks} ranks")


@contextlib.contextmanager
def running(
    command: list[str], directory: Path, **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a launcher during the block, and pause it at the end."""
    with (directory / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command, str(TRAINING), str(directory)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ours(directory: Path, min_workers: int, max_workers: int) -> list[str]:
    """Return the launcher's command line."""
    options = ["--min", str(min_workers), "--max", str(max_workers), "--directory", str(directory)]
    return ["-m", "runai.elastic.run", *options]


def resize_in_process(directory: Path, times: int) -> None:
    """Resize 1 → 2 → 1 `times` times, with workers that stay."""
    job = JobDirectory(directory)
    with running(ours(directory, 1, 2), directory):
        wait_for_updates(directory, 2, STEADY_UPDATES, 0)
        for ranks in [1, 2] * times + [1]:
            requested_at = time.monotonic()
            job.request_workers(ranks)
            wait_for_updates(directory, ranks, STEADY_UPDATES, requested_at)


def checkpoint_and_restart(directory: Path, times: int) -> None:
    """Pause with one number of workers and start again with the other, 1 → 2 → 1."""
    for ranks in [1, 2] * times + [1]:
        begun = time.monotonic()
        with running(ours(directory, ranks, ranks), directory):
            wait_for_updates(directory, ranks, STEADY_UPDATES, begun)


def torchrun_restarts(directory: Path, times: int) -> None:
    """Add and remove a second node: torchrun restarts all workers from their checkpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def node(*, host: bool) -> list[str]:
        rendezvous = f"is_host={int(host)},last_call_timeout=1"
        return [
            *["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"],
            *["--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=resize"],
            *[f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={rendezvous}"],
            *["--monitor-interval=0.1", "--local-addr=127.0.0.1"],
        ]

    settings = {
        "RUNAI_CHECKPOINT_DIR": str(directory / "checkpoints"),
        # With a shared store, torch 2.15's first agent does not pass its address to later ones.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with running(node(host=True), directory, **settings):
        wait_for_updates(directory, 1, STEADY_UPDATES, 0)
        for _ in range(times):
            requested_at = time.monotonic()
            with running(node(host=False), directory, **settings):
                wait_for_updates(directory, 2, STEADY_UPDATES, requested_at)
            wait_for_updates(directory, 1, STEADY_UPDATES, time.monotonic())


def measure(name: str, how: Callable[[Path, int], None], times: int) -> dict[str, Any]:
    """Run one way of resizing in a new directory, and return its figures."""
    with tempfile.TemporaryDirectory(prefix="elastic-resize-") as path:
        directory, error = Path(path), None
        try:
            how(directory, times)
        except (TimeoutError, subprocess.TimeoutExpired) as failed:
            error = str(failed)
            print((directory / "output.txt").read_text()[-2000:], file=sys.stderr)
        seen = {
            "pause_s": pauses(directory),
            "usual_update_s": usual_step(directory),
            "samples": miscounted(directory),
        }
    seen["median_s"] = {
        change: round(statistics.median(values), 3) for change, values in seen["pause_s"].items()
    }
    print(f"{name}: {json.dumps(seen, indent=1)}", flush=True)
    return seen | ({"error": error} if error else {})


def main() -> None:
    """Measure the three ways in sequence, and save the figures."""
    parser = argparse.ArgumentParser(description="What a resize costs a training.")
    parser.add_argument("--times", type=int, default=9, help="resizes in each direction (9)")
    parser.add_argument("--restarts", type=int, default=3, help="restarts in each direction (3)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    about = measured()
    restarted = measure("checkpoint and restart", checkpoint_and_restart, options.restarts)
    resized = measure("resize in process", resize_in_process, options.times)
    foreign = measure("torchrun", torchrun_restarts, options.restarts)
    ratios = {
        change: round(restarted["median_s"][change] / median, 1)
        for change, median in resized["median_s"].items()
        if change in restarted["median_s"]
    }
    found = {
        **about,
        "training": f"MLP {WIDTHS}, AdamW, batch {GLOBAL_BATCH}, gloo, one thread each",
        "worst_s": max(max(values) for values in resized["pause_s"].values()),
        "restart_is_longer": ratios,
        "resize_in_process": resized,
        "checkpoint_and_restart": restarted,
        "torchrun_last_call_1s": foreign,
    }
    options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"worst pause {found['worst_s']} s; restart is longer by {ratios}")


if __name__ == "__main__":
    main()
