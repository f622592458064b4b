"""A job that counts to N, one step at a time, and notices if it runs twice at once.

Usage: counting.py STEPS SECONDS_PER_STEP. Saves its count in RUNAI_CHECKPOINT_DIR (atomically),
stops on SIGTERM with 143, writes its final count to `done`, and `doubled` if another copy was
running.
"""

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
folder = Path(os.environ["RUNAI_CHECKPOINT_DIR"])
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())

lock = (folder / "lock").open("w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "doubled").write_text(os.environ["RUNAI_WORKLOAD"])
    sys.exit(3)

place = folder / "place"
counted = int(place.read_text()) if place.exists() else 0
while counted < steps:
    if told.wait(seconds):
        sys.exit(143)
    counted += 1
    fresh = folder / "place.new"
    fresh.write_text(str(counted))
    fresh.replace(place)
    print(f"counted {counted} of {steps}", flush=True)
with (folder / "done").open("a") as done:
    done.write(f"{counted}\n")
