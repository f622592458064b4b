"""`runai schedule` decides on a snapshot in a file; `runai up` replaces itself by the platform."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SNAPSHOT = {
    "nodes": [{"name": "box", "devices": 1, "device_memory_mib": 16384}],
    "projects": [{"name": "vision", "quota": 1}],
    "workloads": [
        {"name": "a", "project": "vision", "workers": [{"name": "a-0", "gpus": 1}]},
    ],
}


def test_schedule_prints_the_plan_of_standard_input(runai):
    result = runai("schedule", "-", stdin=json.dumps(SNAPSHOT))

    assert result.exit_code == 0
    assert [
        (decision["kind"], decision["worker"])
        for decision in json.loads(result.stdout)["decisions"]
    ] == [("start", "a-0")]


def test_schedule_hands_its_options_on(runai):
    lines = f"{json.dumps(SNAPSHOT)}\n{json.dumps(SNAPSHOT)}\n"

    result = runai("schedule", "--jsonl", "-", stdin=lines)

    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "named"),
    [
        pytest.param(["no-such-file.json"], None, "no-such-file.json", id="no-file"),
        pytest.param(["-"], '{"nods": []}', "nods", id="unknown-field"),
    ],
)
def test_schedule_names_what_it_cannot_read(runai, arguments, stdin, named):
    result = runai("schedule", *arguments, stdin=stdin)

    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        pytest.param([], "or ask the running platform with --live", id="nothing"),
        pytest.param(["x.json", "--add", "nlp 1 GPU"], "add --live", id="add-without-live"),
        pytest.param(["x.json", "--live"], "leave out the snapshot", id="both"),
        pytest.param(["--live", "--add", "nlp"], "write 'nlp 4 GPUs'", id="no-amount"),
        pytest.param(["--live", "--add", "nlp 1.2345 GPUs"], "at most three decimals", id="fine"),
        pytest.param(["--live", "--set", "vision"], "as in vision.quota=6", id="no-value"),
        pytest.param(["--live", "--set", "vision.colour=1"], "settings are quota", id="no-setting"),
        pytest.param(["--live", "--set", "A B.quota=1"], "cannot be meant", id="no-project-name"),
        pytest.param(["--live", "--set", "a.weight=0.5"], "give a whole number", id="half"),
        pytest.param(["--live", "--set", "a.quota=lots"], "a number of GPUs or none", id="words"),
    ],
)
def test_schedule_names_the_way_out(runai, arguments, way_out):
    result = runai("schedule", *arguments)

    assert result.exit_code == 2
    assert way_out in " ".join(result.stderr.split())


def test_up_becomes_the_platforms_own_program(home):
    done = subprocess.run(
        [sys.executable, "-m", "runai.hub_service.cli", "up", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "80"},
    )

    assert done.stdout.startswith("usage: runai up ")
    assert "--simulate N" in done.stdout
