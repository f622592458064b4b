"""A job's own progress reports, read where its account may have put any file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runai.hub_service.clusters.local.files.progress_files import (
    MAX_BYTES,
    ProgressFile,
    ProgressFiles,
)
from runai.hub_service.model.progress import Progress, read_progress
from runai.reporter.pushing import ReportType, push

LOSS = {"metrics": {"loss": 0.5}}
NAMES = {"vision/e"}
READ = {"vision/e": Progress(metrics={"loss": 0.5})}


def of(folder: Path, *, phase: object = 1, **fields: Any) -> ProgressFile:
    return ProgressFile("vision/e", folder, fields.get("owner"), phase)


def write(folder: Path, told: object) -> None:
    part = folder / "part"
    part.write_text(json.dumps(told))
    part.replace(folder / "progress.json")


def test_progress_files_return_the_values_that_push_wrote(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNAI_CHECKPOINT_DIR", str(tmp_path))
    push("epoch", 3, ReportType.metric)
    push("overall_epochs", 10, ReportType.metric)
    push("loss", float("nan"), ReportType.metric)
    push("optimizer_name", "Adam", ReportType.parameter)

    [found] = ProgressFiles().poll([of(tmp_path)], NAMES).values()
    assert found.epochs == (3.0, 10.0)
    assert str(found.metrics["loss"]) == "nan"
    assert found.parameters == {"optimizer_name": "Adam"}


def test_a_file_is_read_again_when_it_was_replaced(tmp_path):
    files = ProgressFiles()
    assert files.poll([of(tmp_path)], NAMES) == {}
    write(tmp_path, {"metrics": {"loss": 1.5}})
    files.poll([of(tmp_path)], NAMES)
    write(tmp_path, LOSS)

    assert files.poll([of(tmp_path)], NAMES) == READ


def test_the_file_of_a_job_that_does_not_run_is_looked_at_once(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS)
    files.poll([of(tmp_path, phase="runs")], NAMES)
    assert not files.is_cached("vision/e", "ended")
    files.poll([of(tmp_path, phase="ended")], NAMES)
    (tmp_path / "progress.json").unlink()

    assert files.is_cached("vision/e", "ended")
    assert files.poll([], NAMES) == READ
    assert files.poll([of(tmp_path, phase="runs again")], NAMES) == {}


def test_progress_files_forget_workloads_that_are_gone(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS)
    files.poll([of(tmp_path)], NAMES)

    assert files.poll([], set()) == {}
    assert not files.is_cached("vision/e", 1)


def test_look_at_one_job_reads_only_that_job_and_keeps_cached_progress(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS)
    files.poll([of(tmp_path)], NAMES)
    (tmp_path / "progress.json").unlink()

    assert files.read([], {"vision/other"}) == {}
    assert files.read([], NAMES) == READ
    assert files.read([of(tmp_path, phase=2)], NAMES) == {}


def _link(folder: Path) -> None:
    (folder / "elsewhere").write_text(json.dumps(LOSS))
    (folder / "progress.json").symlink_to(folder / "elsewhere")


def _too_long(folder: Path) -> None:
    write(folder, {"metrics": {"loss": 0.5}, "parameters": {"a": "x" * MAX_BYTES}})


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda folder: None, id="nothing"),
        pytest.param(_link, id="a-link"),
        pytest.param(lambda folder: os.mkfifo(folder / "progress.json"), id="a-pipe"),
        pytest.param(lambda folder: (folder / "progress.json").mkdir(), id="a-directory"),
        pytest.param(_too_long, id="more-than-is-read"),
        pytest.param(lambda folder: write(folder, [1]), id="a-list"),
    ],
)
def test_progress_files_skip_invalid_files(tmp_path, prepare):
    prepare(tmp_path)

    assert ProgressFiles().poll([of(tmp_path)], NAMES) == {}


def test_a_file_of_another_account_is_left_alone(tmp_path):
    write(tmp_path, LOSS)

    assert ProgressFiles().poll([of(tmp_path, owner=os.getuid() + 1)], NAMES) == {}
    assert ProgressFiles().poll([of(tmp_path, owner=os.getuid())], NAMES) == READ


@settings(max_examples=50)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=200),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ).map(lambda told: json.dumps({"metrics": told, "parameters": told}).encode())
)
def test_whatever_is_in_a_file_what_is_shown_of_it_is_short_and_plain(content):
    found = read_progress(content) or Progress()

    assert len(found.metrics) <= 100
    assert all(isinstance(value, float) for value in found.metrics.values())
    for shown in (*found.metrics, *found.parameters, *found.parameters.values()):
        assert len(shown) <= 100
        assert not shown or shown.isprintable()
    assert found.epochs is None or 0 <= found.epochs[0] <= found.epochs[1]
