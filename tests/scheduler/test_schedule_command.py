"""`runai schedule`: the dry run, from a file or line by line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from runai.hub_service.scheduler.__main__ import main

EXAMPLE: dict[str, Any] = {
    "nodes": [{"name": "dgx-1", "devices": 8}],
    "projects": [{"name": "vision", "quota": 4}],
    "workloads": [
        {"name": "bob-1", "project": "vision", "workers": [{"name": "bob-1-0", "gpus": 0.5}]}
    ],
}


def test_schedule_prints_the_plan_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(EXAMPLE))

    assert main([str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["projects"]["vision"] == {
        "quota": 4,
        "fair_share": 0.5,
        "allocated": 0.5,
        "over_quota": 0,
    }


def test_schedule_reads_standard_input_line_by_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Empty lines are skipped, and an invalid line does not end the command.
    lines = [json.dumps(EXAMPLE), "", json.dumps({"x": 1}), "{", json.dumps({})]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))

    status = main(["--jsonl", "-"])

    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(plan) for plan in plans] == [
        ["decisions", "projects"],
        ["error"],
        ["error"],
        ["decisions", "projects"],
    ]
    assert status == 2


@pytest.mark.parametrize("options", [[], ["--jsonl"]], ids=["file", "lines"])
def test_schedule_accepts_a_snapshot_with_a_byte_order_mark(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text("\ufeff" + json.dumps(EXAMPLE), encoding="utf-8")

    assert main([*options, str(file)]) == 0
    assert '"bob-1"' in capsys.readouterr().out


def test_schedule_reports_a_missing_snapshot_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none.json")

    assert main([missing]) == 2
    assert capsys.readouterr().err == f"{missing}: No such file or directory\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"\xff{}", "not JSON: it is no UTF-8 text", id="not UTF-8"),
        pytest.param(b'{"now": 1, "now": 2}', "'now' is there twice in one object", id="repeat"),
        pytest.param(
            b'{"projects": [{"name": "a", "quota": 2, "quota": 0}]}',
            "'quota' is there twice in one object",
            id="repeat in a project",
        ),
        pytest.param(b"[" * 100_000, "not JSON: it is nested too deeply", id="nested too deeply"),
        pytest.param(b'{"now": ' + b"9" * 5000 + b"}", "not JSON: Exceeds the limit", id="digits"),
        pytest.param(
            b'{"nodes": [{"name": "\\u001b[2J", "x": 1}]}', r"node \x1b[2J: unknown", id="escape"
        ),
    ],
)
def test_schedule_with_an_unreadable_snapshot_exits_with_2_and_an_error_message(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(content)

    assert main([str(file)]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_schedule_returns_a_worker_name_with_a_lone_surrogate_unchanged(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "snapshot.json"
    document = json.dumps(EXAMPLE).replace("bob-1-0", r"\udfff")
    file.write_text(document)

    assert main([str(file)]) == 0
    (start,) = json.loads(capsysbinary.readouterr().out)["decisions"]
    assert start["worker"] == "\udfff"


def test_schedule_explains_the_wait_of_one_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "snapshot.json"
    second = {"name": "big", "project": "vision", "workers": [{"name": "big-0", "gpus": 9}]}
    file.write_text(json.dumps({**EXAMPLE, "workloads": [*EXAMPLE["workloads"], second]}))

    assert main([str(file), "--explain", "big"]) == 0
    (wait,) = json.loads(capsys.readouterr().out)["decisions"]
    assert (wait["kind"], wait["workload"], wait["reason"]["code"]) == (
        "wait",
        "big",
        "no_such_node",
    )
    assert wait["explanation"]["counterfactuals"] == [
        {
            "changes": [{"kind": "ask", "workload": "big", "gpus": 8}],
            "text": "would start with 8 GPUs instead of 9",
        }
    ]

    assert main([str(file), "--explain", "bob-1"]) == 0
    assert [d["kind"] for d in json.loads(capsys.readouterr().out)["decisions"]] == ["start"]

    assert main([str(file), "--explain", "eve"]) == 2
    assert capsys.readouterr().err == "there is no workload eve in the snapshot\n"
