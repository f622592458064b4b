"""A job that counts to N and detects double runs and devices allocated twice.

Usage: counting.py STEPS SECONDS_PER_STEP WITNESS. Saves its count in RUNAI_CHECKPOINT_DIR
(atomically; on a full disk it waits for room, as a training should), stops on SIGTERM with 143.
Writes to the folder WITNESS, on another disk: `violations`, NAME.done with one line for each time
that it reached the end, ran/ with the time and share of each run.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

steps, seconds, witness = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
name = os.environ["RUNAI_WORKLOAD"].replace("/", "+")
folder = Path(os.environ["RUNAI_CHECKPOINT_DIR"])
share = float(os.environ["RUNAI_GPU_FRACTION"])
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
locks: list[IO[str]] = []


def take(what: str) -> bool:
    """Lock a file until this process exits; return False if another process has the lock."""
    lock = (witness / f"{what}.lock").open("w")
    locks.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def violated(text: str) -> None:
    """Append a violation to the witness's folder."""
    with (witness / "violations").open("a") as file:
        file.write(f"{text}\n")


def keep(place: Path, count: int) -> None:
    """Write the checkpoint; wait while the disk is full."""
    fresh = place.with_suffix(".new")
    while True:
        try:
            fresh.write_text(str(count))
            fresh.replace(place)
        except OSError:
            if told.wait(0.1):
                sys.exit(143)
        else:
            return


if not take(name):
    violated(f"{name} runs twice at once")
    sys.exit(3)
for device in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    halves = f"{device}.0", f"{device}.1"
    fits = any(map(take, halves)) if share <= 0.5 else all(map(take, halves))
    if not fits:
        violated(f"{name} was given {share:g} of {device}, which others had")

place = folder / "place"
counted = int(place.read_text() or 0) if place.exists() else 0
if counted and os.environ["RUNAI_RESUMED"] != "1":
    violated(f"{name} begins anew after {counted}")
began = time.monotonic()
(witness / "ran").mkdir(exist_ok=True)
with (witness / "ran" / f"{name}.{os.getpid()}.{began}").open("w") as ran:
    while counted < steps:
        if told.wait(seconds):
            sys.exit(143)
        counted += 1
        keep(place, counted)
        os.pwrite(ran.fileno(), f"{time.monotonic() - began:012.3f} {share:5.3f}".encode(), 0)
        print(f"counted {counted} of {steps}", flush=True)
with (witness / f"{name}.done").open("a") as done:
    done.write(f"{counted}\n")
