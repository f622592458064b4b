"""`runai schedule` decides on a snapshot in a file; `runai up` checks its options."""

from __future__ import annotations

import json

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


def test_schedule_jsonl_prints_a_plan_for_each_line(runai):
    lines = f"{json.dumps(SNAPSHOT)}\n{json.dumps(SNAPSHOT)}\n"

    result = runai("schedule", "--jsonl", "-", stdin=lines)

    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "culprit"),
    [
        pytest.param(["no-such-file.json"], None, "no-such-file.json", id="no-file"),
        pytest.param(["-"], '{"nods": []}', "nods", id="unknown-field"),
    ],
)
def test_schedule_names_a_missing_snapshot_file_or_unknown_field(runai, arguments, stdin, culprit):
    result = runai("schedule", *arguments, stdin=stdin)

    assert result.exit_code == 2
    assert culprit in result.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        pytest.param([], "or ask the running platform with --live", id="no-arguments"),
        pytest.param(["x.json", "--add", "nlp 1 GPU"], "add --live", id="add-without-live"),
        pytest.param(["x.json", "--live"], "leave out the snapshot", id="file-and-live"),
        pytest.param(["--live", "--add", "nlp"], "write 'nlp 4 GPUs'", id="no-amount"),
        pytest.param(
            ["--live", "--add", "nlp 1.2345 GPUs"], "at most three decimals", id="too-fine-amount"
        ),
        pytest.param(["--live", "--set", "vision"], "as in vision.quota=6", id="no-value"),
        pytest.param(
            ["--live", "--set", "vision.colour=1"], "settings are quota", id="unknown-setting"
        ),
        pytest.param(["--live", "--set", "A B.quota=1"], "cannot be meant", id="no-project-name"),
        pytest.param(
            ["--live", "--set", "a.weight=0.5"],
            "weight is '0.5': it must be a whole number",
            id="weight",
        ),
        pytest.param(
            ["--live", "--set", "a.quota=lots"],
            "quota is 'lots': use a number such as 0.5 or 2",
            id="quota",
        ),
    ],
)
def test_schedule_refuses_invalid_arguments_with_a_hint(runai, arguments, hint):
    result = runai("schedule", *arguments)

    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())


def test_up_refuses_invalid_options_in_one_sentence(runai):
    invalid_value = runai("up", "--gpus", "some")
    conflict = runai("up", "--tls-internal", "--domain", "gpu.example.org")

    assert invalid_value.exit_code == 1
    assert invalid_value.stderr.splitlines() == [
        "Error: --gpus some is not possible.",
        "Hint: Use a whole number from 0 to 1024.",
    ]
    assert conflict.exit_code == 2
    assert "--tls-internal is not allowed with --domain" in conflict.stderr
