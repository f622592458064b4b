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

LOSS_REPORT = {"metrics": {"loss": 0.5}}
WORKLOADS = {"vision/e"}
LOSSES = {"vision/e": Progress(metrics={"loss": 0.5})}


def progress_file(folder: Path, *, phase: object = 1, **fields: Any) -> ProgressFile:
    return ProgressFile("vision/e", folder, fields.get("owner"), phase)


def write(folder: Path, content: object) -> None:
    part = folder / "part"
    part.write_text(json.dumps(content))
    part.replace(folder / "progress.json")


def test_progress_files_return_the_values_that_a_job_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNAI_CHECKPOINT_DIR", str(tmp_path))
    push("epoch", 3, ReportType.metric)
    push("overall_epochs", 10, ReportType.metric)
    push("loss", float("nan"), ReportType.metric)
    push("optimizer_name", "Adam", ReportType.parameter)

    [progress] = ProgressFiles().poll([progress_file(tmp_path)], WORKLOADS).values()
    assert progress.epochs == (3.0, 10.0)
    assert str(progress.metrics["loss"]) == "nan"
    assert progress.parameters == {"optimizer_name": "Adam"}


def test_progress_file_is_read_again_when_it_was_replaced(tmp_path):
    files = ProgressFiles()
    assert files.poll([progress_file(tmp_path)], WORKLOADS) == {}
    write(tmp_path, {"metrics": {"loss": 1.5}})
    files.poll([progress_file(tmp_path)], WORKLOADS)
    write(tmp_path, LOSS_REPORT)

    assert files.poll([progress_file(tmp_path)], WORKLOADS) == LOSSES


def test_progress_file_of_an_ended_job_is_read_once_and_cached(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS_REPORT)
    files.poll([progress_file(tmp_path, phase="runs")], WORKLOADS)
    assert not files.is_cached("vision/e", "ended")
    files.poll([progress_file(tmp_path, phase="ended")], WORKLOADS)
    (tmp_path / "progress.json").unlink()

    assert files.is_cached("vision/e", "ended")
    assert files.poll([], WORKLOADS) == LOSSES
    assert files.poll([progress_file(tmp_path, phase="runs again")], WORKLOADS) == {}


def test_progress_cache_drops_removed_workloads(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS_REPORT)
    files.poll([progress_file(tmp_path)], WORKLOADS)

    assert files.poll([], set()) == {}
    assert not files.is_cached("vision/e", 1)


def test_progress_read_of_one_job_returns_the_cached_value_until_a_new_phase(tmp_path):
    files = ProgressFiles()
    write(tmp_path, LOSS_REPORT)
    files.poll([progress_file(tmp_path)], WORKLOADS)
    (tmp_path / "progress.json").unlink()

    assert files.read([], {"vision/other"}) == {}
    assert files.read([], WORKLOADS) == LOSSES
    assert files.read([progress_file(tmp_path, phase=2)], WORKLOADS) == {}


def _link(folder: Path) -> None:
    (folder / "elsewhere").write_text(json.dumps(LOSS_REPORT))
    (folder / "progress.json").symlink_to(folder / "elsewhere")


def _too_long(folder: Path) -> None:
    write(folder, {"metrics": {"loss": 0.5}, "parameters": {"a": "x" * MAX_BYTES}})


@pytest.mark.parametrize(
    "make_file",
    [
        pytest.param(lambda folder: None, id="no file"),
        pytest.param(_link, id="link"),
        pytest.param(lambda folder: os.mkfifo(folder / "progress.json"), id="FIFO"),
        pytest.param(lambda folder: (folder / "progress.json").mkdir(), id="directory"),
        pytest.param(_too_long, id="too long"),
        pytest.param(lambda folder: write(folder, [1]), id="list"),
    ],
)
def test_invalid_progress_files_of_jobs_are_skipped(tmp_path, make_file):
    make_file(tmp_path)

    assert ProgressFiles().poll([progress_file(tmp_path)], WORKLOADS) == {}


def test_progress_file_of_a_foreign_account_is_not_read(tmp_path):
    write(tmp_path, LOSS_REPORT)

    assert ProgressFiles().poll([progress_file(tmp_path, owner=os.getuid() + 1)], WORKLOADS) == {}
    assert ProgressFiles().poll([progress_file(tmp_path, owner=os.getuid())], WORKLOADS) == LOSSES


@settings(max_examples=50)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=200),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ).map(lambda values: json.dumps({"metrics": values, "parameters": values}).encode())
)
def test_progress_read_from_any_file_content_is_short_and_printable(content):
    progress = read_progress(content) or Progress()

    assert len(progress.metrics) <= 100
    assert all(isinstance(value, float) for value in progress.metrics.values())
    for text in (*progress.metrics, *progress.parameters, *progress.parameters.values()):
        assert len(text) <= 100
        assert not text or text.isprintable()
    assert progress.epochs is None or 0 <= progress.epochs[0] <= progress.epochs[1]
