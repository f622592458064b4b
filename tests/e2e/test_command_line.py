"""A user at a terminal of a whole platform: its parts fit together.

Runs in `make test`, so it needs no browser: the rest of the hub's tests are in `make test-all`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hub_platform import PASSWORD, HubPlatform
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.tier("test"), pytest.mark.timeout(300)]

SAVED_STEP = "7"
TRAINING = f"""
import os, pathlib, signal, sys, time

checkpoint = pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"], "step")

def pause(*_):
    checkpoint.write_text("{SAVED_STEP}")
    sys.exit(143)

signal.signal(signal.SIGTERM, pause)
if os.environ["RUNAI_RESUMED"] == "1":
    print("went on from step", checkpoint.read_text(), flush=True)
else:
    print("began", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def runai(one_gpu: HubPlatform, tmp_path: Path) -> Callable[..., str]:
    """Return the command line of a user with an empty home."""

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "runai.hub_service.cli", *arguments],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)  # `eventually` would retry after an AssertionError
        return done.stdout

    return run


def test_command_line_user_starts_a_session_and_pauses_and_resumes_a_job(
    one_gpu: HubPlatform, runai: Callable[..., str]
):
    login_output = runai(
        "login", f"{one_gpu.http.base_url}", "--user", "ana", "--password-stdin", stdin=PASSWORD
    )
    one_gpu.start_server("ana", project="vision", gpus="0.5")
    allocated_by_user = one_gpu.holds()
    runai("submit", "exp1", "--gpus", "0.5", "--", sys.executable, "-c", TRAINING)
    eventually(lambda: "began" in runai("logs", "exp1"), within=60, what="the training began")
    list_output = runai("list")
    runai("suspend", "exp1")
    eventually(lambda: "suspended" in runai("list"), within=60, what="the job is suspended")
    runai("resume", "exp1")
    eventually(lambda: "succeeded" in runai("list"), within=60, what="the job has succeeded")
    log = runai("logs", "exp1")
    runai("delete", "exp1")
    one_gpu.stop_all()

    assert "Projects: vision" in login_output
    assert allocated_by_user == {"ana": 0.5}
    assert "exp1" in list_output
    assert "running" in list_output
    assert f"went on from step {SAVED_STEP}" in log
