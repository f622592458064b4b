"""The story of Bob and Patty, played from the command line with real jobs on five GPUs.

Two projects of quota 2.5. Bob borrows what is idle; when Patty comes, exactly as many of his jobs
pause as she needs, and resume from their checkpoints when she is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from held_training import LEARNED, held

EXAMPLE = str(Path(__file__).parents[2] / "examples/train_numpy.py")
STEPS = 40
SEED = 1
BOBS_JOBS = [f"exp-{i}" for i in range(6)]
PATTYS_JOBS = ["talk-0", "talk-1"]

# A training that can be paused: half-way it waits until it is let go on, also where it was resumed
# there, so that the story needs no clock. Its result depends on every step having been made
# exactly once.
TRAINING = f"""
import json, os, pathlib, signal, sys, time

def step(weight):
    return (weight * 1103515245 + 12345) % 2**31

checkpoint = pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"]) / "state.json"
state = json.loads(checkpoint.read_text()) if checkpoint.exists() else [0, {SEED}]

def pause(*_):
    checkpoint.write_text(json.dumps(state))
    sys.exit(143)

signal.signal(signal.SIGTERM, pause)
resumed = os.environ["RUNAI_RESUMED"] == "1"
print("resumed" if resumed else "begun", "at step", state[0], flush=True)
while state[0] < {STEPS}:
    if state[0] == {STEPS} // 2:
        print("half", flush=True)
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.02)
    state = [state[0] + 1, step(state[1])]
print("result", state[1], flush=True)
"""


def result_without_a_pause():
    weight = SEED
    for _ in range(STEPS):
        weight = (weight * 1103515245 + 12345) % 2**31
    return weight


@pytest.fixture
def training(tmp_path, monkeypatch):
    """The directory of the program; a file of a user's name lets that user's jobs finish."""
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def workloads(user):
    listed = json.loads(user("list", "-o", "json").stdout)
    return {w["name"]: w for w in listed if w["kind"] == "job"}


def states(user):
    return Counter(w["state"] for w in workloads(user).values())


def train(user, name):
    return submit(user, name, "train.py", f"{user.name}-may-finish")


def submit(user, name, *program):
    return user("submit", name, "--gpus", "1", "--", sys.executable, *program)


def test_bob_and_patty(as_user, training, eventually):
    bob, patty, admin = as_user("bob"), as_user("patty"), as_user("admin")

    # Two sessions of half a GPU share one device; four are left.
    for user in (bob, patty):
        user("submit", "lab", "--gpus", "0.5", "--interactive", "--", "sleep", "600")
    eventually(lambda: shares_of_devices(admin) == [[0.5, 0.5]])

    # Bob takes all of them, twice over his quota and more; two of his jobs wait.
    for name in BOBS_JOBS:
        assert train(bob, name).exit_code == 0
    eventually(lambda: states(bob) == {"running": 4, "queued": 2})
    assert allocated(admin) == {"vision": 4.5, "nlp": 0.5}
    running = [name for name, w in workloads(bob).items() if w["state"] == "running"]
    for name in running:
        eventually(lambda name=name: "half" in bob("logs", name).stdout)

    # Patty comes for what is hers: exactly two of Bob's jobs pause, and hers run.
    for name in PATTYS_JOBS:
        assert train(patty, name).exit_code == 0
    eventually(lambda: states(patty) == {"running": 2})
    eventually(lambda: states(bob) == {"running": 2, "paused": 2, "queued": 2})
    assert allocated(admin) == {"vision": 2.5, "nlp": 2.5}
    paused = {name: w for name, w in workloads(bob).items() if w["state"] == "paused"}
    assert set(paused) < set(running)
    for name in paused:
        assert "nlp" in bob("describe", name).stdout

    # Hers end; his resume from where they were.
    (training / "patty-may-finish").touch()
    eventually(lambda: states(patty) == {"succeeded": 2})
    eventually(lambda: states(bob) == {"running": 4, "queued": 2})
    for name in paused:
        eventually(lambda name=name: f"resumed at step {STEPS // 2}" in bob("logs", name).stdout)

    # All finish with the result that an undisturbed training has; nothing was done twice.
    (training / "bob-may-finish").touch()
    eventually(lambda: states(bob) == {"succeeded": 6})
    for name in BOBS_JOBS:
        assert f"result {result_without_a_pause()}" in bob("logs", name).stdout
    attempts = {name: w["attempts"] for name, w in workloads(bob).items()}
    assert attempts == {name: 2 if name in paused else 1 for name in BOBS_JOBS}
    assert allocated(admin) == {"vision": 0.5, "nlp": 0.5}


def test_real_trainings_end_as_if_they_had_not_been_paused(as_user, eventually, tmp_path):
    bob, patty = as_user("bob"), as_user("patty")
    undisturbed = subprocess.run(
        [sys.executable, EXAMPLE, "--epochs", "3", "--seconds", "0"],
        # As jobs have it: what tunes libraries here (OPENBLAS_CORETYPE) changes the last bits.
        env={"PATH": os.environ["PATH"], "RUNAI_CHECKPOINT_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = undisturbed.stdout.splitlines()[-1]

    # Five GPUs for the first five; each waits in its first epoch, so they are there to be paused.
    training, may_go_on = tmp_path / "training.py", tmp_path / "may-go-on"
    training.write_text(held(Path(EXAMPLE), may_go_on))
    for name in BOBS_JOBS:
        submit(bob, name, str(training), "--epochs", "3", "--seconds", "2")
    for name in BOBS_JOBS[:5]:
        eventually(lambda name=name: LEARNED in bob("logs", name).stdout, within=120)
    for name in PATTYS_JOBS:
        submit(patty, name, EXAMPLE, "--epochs", "1", "--seconds", "0")
    eventually(lambda: states(patty) == {"succeeded": 2}, within=120)
    may_go_on.touch()
    eventually(lambda: states(bob) == {"succeeded": 6}, within=120)

    paused = [name for name, w in workloads(bob).items() if w["pauses"]]
    assert len(paused) == 2
    for name in BOBS_JOBS:
        log = bob("logs", name).stdout
        assert log.splitlines()[-1] == result
        assert ("Going on at epoch" in log) == (name in paused)


def shares_of_devices(user):
    (node,) = json.loads(user("list", "nodes", "-o", "json").stdout)
    return [[a["gpus"] for a in d["allocations"]] for d in node["devices"] if d["allocations"]]


def allocated(user):
    listed = json.loads(user("list", "projects", "-o", "json").stdout)
    return {p["name"]: p["allocated"] for p in listed if p["name"] in {"vision", "nlp"}}
