"""A job that counts to N and detects double runs and devices allocated twice.

Usage: counting_job.py STEPS SECONDS_PER_STEP [WITNESS]. Saves its count in RUNAI_CHECKPOINT_DIR
(atomically; on a full disk it waits for room, as a training should), stops on SIGTERM with 143.
Writes to the folder WITNESS, which jobs share and which may be on another disk: `violations`,
NAME.done with one line for each time that it reached the end, ran/ with the time and share of each
run.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
workload = os.environ["RUNAI_WORKLOAD"].replace("/", "+")
folder = Path(os.environ["RUNAI_CHECKPOINT_DIR"])
witness = Path(sys.argv[3]) if sys.argv[3:] else folder
share = float(os.environ["RUNAI_GPU_FRACTION"])
stop_requested = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
locks: list[IO[str]] = []


def acquire(name: str) -> bool:
    """Lock a file until this process exits; return False if another process has the lock."""
    lock = (witness / f"{name}.lock").open("w")
    locks.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def record_violation(text: str) -> None:
    """Append a violation to the witness's folder."""
    with (witness / "violations").open("a") as file:
        file.write(f"{text}\n")


def save(checkpoint: Path, count: int) -> None:
    """Write the checkpoint; wait while the disk is full."""
    temporary = checkpoint.with_suffix(".new")
    while True:
        try:
            temporary.write_text(str(count))
            temporary.replace(checkpoint)
        except OSError:
            if stop_requested.wait(0.1):
                sys.exit(143)
        else:
            return


if not acquire(workload):
    record_violation(f"{workload} runs twice at once")
    sys.exit(3)
for device in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    halves = f"{device}.0", f"{device}.1"
    fits = any(map(acquire, halves)) if share <= 0.5 else all(map(acquire, halves))
    if not fits:
        record_violation(f"{workload} got {share:g} of {device}, which another job has")

checkpoint = folder / "step"
steps_done = int(checkpoint.read_text() or 0) if checkpoint.exists() else 0
if steps_done and os.environ["RUNAI_RESUMED"] != "1":
    record_violation(f"{workload} begins anew after {steps_done}")
began = time.monotonic()
(witness / "ran").mkdir(exist_ok=True)
with (witness / "ran" / f"{workload}.{os.getpid()}.{began}").open("w") as ran:
    while steps_done < steps:
        if stop_requested.wait(seconds):
            sys.exit(143)
        steps_done += 1
        save(checkpoint, steps_done)
        os.pwrite(ran.fileno(), f"{time.monotonic() - began:012.3f} {share:5.3f}".encode(), 0)
        print(f"counted {steps_done} of {steps}", flush=True)
with (witness / f"{workload}.done").open("a") as done:
    done.write(f"{steps_done}\n")
