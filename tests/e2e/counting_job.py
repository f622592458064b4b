"""A job that counts to N, one step at a time, and notices if it runs twice at once.

Usage: counting_job.py STEPS SECONDS_PER_STEP. Saves its count in RUNAI_CHECKPOINT_DIR (atomically),
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
stop_requested = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())

lock = (folder / "lock").open("w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "doubled").write_text(os.environ["RUNAI_WORKLOAD"])
    sys.exit(3)

place = folder / "place"
steps_done = int(place.read_text()) if place.exists() else 0
while steps_done < steps:
    if stop_requested.wait(seconds):
        sys.exit(143)
    steps_done += 1
    temporary = folder / "place.new"
    temporary.write_text(str(steps_done))
    temporary.replace(place)
    print(f"counted {steps_done} of {steps}", flush=True)
with (folder / "done").open("a") as done:
    done.write(f"{steps_done}\n")
