"""`runai schedule --live` and `runai describe` on a running service: what if, and wait reasons."""

from __future__ import annotations

import json

import pytest

from runai.hub_service.cli.output.what_if import parse_addition, parse_setting

SLEEP = ("--", "sleep", "600")


def state(user, name):
    return json.loads(user("describe", name, "-o", "json").stdout)["state"]


def test_live_schedule_predicts_which_workloads_start_stop_and_wait(as_user, bob, eventually):
    for name in ("a", "b", "c", "d", "e"):  # one on each of the 5 GPUs
        bob("submit", name, "-g", "1", *SLEEP)
    eventually(lambda: all(state(bob, name) == "running" for name in "abcde"))

    table = as_user("admin")("schedule", "--live", "--add", "nlp 2 GPUs", "--set", "nlp.quota=3")
    answer = as_user("admin")("schedule", "--live", "--add", "nlp 2 GPUs", "-o", "json")
    unchanged = bob("schedule", "--live", "--set", "vision.quota=3")
    ended = as_user("admin")(
        *("schedule", "--live", "--end", "vision/a", "--add", "nlp 1 GPU", "-o", "json")
    )

    assert table.exit_code == 0, table.stderr
    header, *rows = table.stdout.splitlines()
    assert header.split() == ["WORKLOAD", "PROJECT", "USER", "GPUS", "NOW", "THEN", "REASON"]
    row_words = [row.split() for row in rows]
    assert ["vision/e", "vision", "bob", "1", "runs", "stops"] in [row[:6] for row in row_words]
    assert any(row[:1] == ["nlp"] and row[-3:] == ["0", "->", "2"] for row in row_words)
    after = {effect["workload"]: effect["after"] for effect in json.loads(answer.stdout)["effects"]}
    assert after["nlp/job-1"] == "starts later"
    assert sorted(after.values()) == ["starts later", "stops", "stops"]
    assert [effect["after"] for effect in json.loads(ended.stdout)["effects"]] == ["gone", "starts"]
    assert unchanged.stdout.startswith("Nothing that you may see would change.")
    assert state(bob, "e") == "running"


def test_describe_explains_a_wait_and_predicts_the_start(bob, eventually):
    bob("submit", "all", "-g", "5", *SLEEP)  # every GPU
    eventually(lambda: state(bob, "all") == "running")
    bob("submit", "next", "-g", "1", *SLEEP)
    eventually(lambda: "Reason" in bob("describe", "next").stdout)

    description = bob("describe", "next").stdout
    explanation = json.loads(bob("describe", "next", "-o", "json").stdout)["explanation"]

    assert "Start:" in description
    assert "run times are estimated" in description
    assert "would start if vision/all ended" in description
    assert "vision/all 5 until about" in description
    assert explanation["counterfactuals"][0]["text"] == "would start if vision/all ended"
    assert json.loads(bob("describe", "all", "-o", "json").stdout)["explanation"] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nlp 4 GPUs", {"project": "nlp", "gpus": "4"}),
        ("nlp 4", {"project": "nlp", "gpus": "4"}),
        ("nlp 0.5 gpu low", {"project": "nlp", "gpus": "0.5", "priority": "low"}),
        ("nlp 8 x 1 GPU", {"project": "nlp", "gpus": "1", "workers": 8}),
        ("nlp 2 workers of 8 GPUs", {"project": "nlp", "gpus": "8", "workers": 2}),
        ("nlp session 20G", {"project": "nlp", "gpu_memory_mib": "20g", "kind": "session"}),
        ("job-x job 1 GPU", {"project": "job-x", "gpus": "1"}),
    ],
)
def test_addition_of_a_what_if_plan_is_parsed_into_a_request(text, expected):
    assert parse_addition(text) == expected


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("vision.quota=6", ("vision", "quota", "6")),
        (" vision.limit = none", ("vision", "limit", None)),
        ("vision.min_runtime=60", ("vision", "min_runtime", "60")),
        ("vision.min_runtime=10m", ("vision", "min_runtime", "10m")),
    ],
)
def test_setting_of_a_what_if_plan_is_parsed_into_a_project_change(text, change):
    assert tuple(parse_setting(text).values()) == change
