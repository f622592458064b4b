"""What is done to a job that runs: its output is followed over pauses, it gets more workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PYTHON = sys.executable
COMMAND = [PYTHON, "-m", "runai.hub_service.cli"]
SAYS_WHETHER_RESUMED = (
    "import os, signal; print('resumed', os.environ['RUNAI_RESUMED'], flush=True); signal.pause()"
)


def test_a_followed_log_goes_on_after_a_pause(bob, eventually):
    bob("submit", "exp1", "-g", "1", "--grace", "1", "--", PYTHON, "-c", SAYS_WHETHER_RESUMED)
    command = [*COMMAND, "logs", "exp1", "-f"]
    environment = os.environ | bob.environment
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "resumed 0\n"

        bob("suspend", "exp1")
        eventually(lambda: bob.described("exp1")["state"] == "suspended")
        assert following.poll() is None
        bob("resume", "exp1")
        assert following.stdout.readline() == "resumed 1\n"

        bob("delete", "exp1")
        assert following.wait(60) == 0


def test_an_elastic_job_gets_more_workers(bob, eventually):
    bob("submit", "big", "--elastic", "--workers", "2", "--", "sleep", "600")
    result = bob("scale", "big", "--workers", "3", "--min-workers", "2")

    assert result.exit_code == 0
    assert "of 2 to 3 GPUs" in result.stdout
    assert bob.described("big")["min_workers"] == 2
    assert len(bob.described("big")["workers"]) == 3


@pytest.mark.parametrize(
    ("submitted", "asked", "sentence"),
    [
        ((), ("--workers", "3"), "vision/exp is not elastic"),
        (("--elastic",), ("--workers", "3"), "is one process on as many GPUs as there are"),
        (("--elastic", "--workers", "2"), (), "Say --workers, --min-workers or both."),
    ],
    ids=["not elastic", "one process", "nothing said"],
)
def test_what_cannot_be_scaled_is_told_in_a_sentence(bob, submitted, asked, sentence):
    bob("submit", "exp", *submitted, "--", "sleep", "600")
    result = bob("scale", "exp", *asked)

    assert result.exit_code != 0
    assert sentence in result.stderr


def test_what_its_project_may_never_hold_is_refused(as_user, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    eve = as_user("eve")
    eve("submit", "exp", "-p", "capped", "--elastic", "--workers", "2", "--", "sleep", "600")
    result = eve("scale", "exp", "-p", "capped", "--workers", "9", "--min-workers", "9")

    assert result.exit_code != 0
    assert "9 GPUs are more than project capped may ever hold" in result.stderr
