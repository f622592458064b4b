"""Reads and writes in the elastic folder, where a job's account may have put any file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from runai.hub_service.clusters.local.files.elastic_dir import MAX_BYTES, ElasticDir
from runai.hub_service.clusters.local.files.elastic_relay import wake
from runai.hub_service.clusters.states.membership import throughput_for_core
from runai.hub_service.model.records import Process
from runai.hub_service.wire.elastic_messages import ElasticFiles, Target, WorkerPhase, WorkerStatus

TARGET = Target(3, ("vision/e-0",), "127.0.0.1:4000", 1, 1, 4)
STATUS = WorkerStatus("vision/e-0", 3, WorkerPhase.RUNNING, 12)


@pytest.fixture
def shared(tmp_path: Path) -> ElasticDir:
    (tmp_path / "elastic" / "status").mkdir(parents=True)
    return ElasticDir(tmp_path / "elastic", None)


def test_elastic_target_and_worker_status_files_are_read_as_they_were_written(shared):
    files = ElasticFiles(shared.path)
    files.write_status(STATUS)

    assert shared.write_target(TARGET)
    assert files.target() == TARGET
    assert shared.statuses(["vision/e-0", "vision/e-1"]) == {"vision/e-0": STATUS}
    assert (shared.path / "target.json").stat().st_mode & 0o777 == 0o600


def test_forget_status_removes_the_last_status_report_of_an_elastic_worker(shared):
    ElasticFiles(shared.path).write_status(STATUS)
    shared.forget_status("vision/e-0")
    shared.forget_status("vision/e-0")

    assert shared.statuses(["vision/e-0"]) == {}


def test_missing_elastic_dir_is_neither_used_nor_created(tmp_path):
    shared = ElasticDir(tmp_path / "none", None)

    assert not shared.write_target(TARGET)
    assert shared.statuses(["vision/e-0"]) == {}
    assert not (tmp_path / "none").exists()


def test_elastic_dir_of_a_foreign_account_is_not_used(shared):
    stranger = ElasticDir(shared.path, os.getuid() + 1)
    ElasticFiles(shared.path).write_status(STATUS)

    assert not stranger.write_target(TARGET)
    assert stranger.statuses(["vision/e-0"]) == {}


def test_link_in_place_of_the_elastic_dir_is_not_followed(shared, tmp_path):
    (tmp_path / "link").symlink_to(shared.path)

    assert not ElasticDir(tmp_path / "link", None).write_target(TARGET)
    assert list(shared.path.glob("*.json")) == []


def test_link_in_place_of_the_elastic_target_file_is_replaced_not_followed(shared, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (shared.path / "target.json").symlink_to(victim)
    (shared.path / ".target.json.new").symlink_to(victim)

    assert shared.write_target(TARGET)
    assert victim.read_text() == "kept"
    assert ElasticFiles(shared.path).target() == TARGET


def _link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.write_text(json.dumps(STATUS.to_json()))
    path.symlink_to(elsewhere)


NO_STATUSES = {
    "a link": _link,
    "a pipe, which would be waited at": os.mkfifo,
    "a directory": Path.mkdir,
    "no JSON": lambda path: path.write_text("{"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "endless": lambda path: path.write_text(json.dumps({"worker": "x" * MAX_BYTES})),
}


@pytest.mark.parametrize("make", NO_STATUSES.values(), ids=NO_STATUSES)
def test_invalid_elastic_worker_status_files_are_skipped(shared, make):
    make(shared.path / "status" / "e-0.json")

    assert shared.statuses(["vision/e-0"]) == {}


LISTENER = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"heard\\n"))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def test_wake_of_an_elastic_worker_signals_only_a_process_of_its_session():
    mine, other = (
        subprocess.Popen(
            [sys.executable, "-c", LISTENER],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    )
    try:
        assert mine.stdout is not None
        assert other.stdout is not None
        assert (mine.stdout.readline(), other.stdout.readline()) == ("ready\n", "ready\n")
        worker = Process(mine.pid, psutil.Process(mine.pid).create_time())
        wake(other.pid, worker)  # it claims to be this worker
        wake(mine.pid, worker)

        assert mine.stdout.readline() == "heard\n"
        wake(other.pid, Process(other.pid, 0.0))
        assert other.stdout.readline() == "heard\n", "now, and for the first time"
        other.send_signal(signal.SIGKILL)
        assert other.stdout.read() == ""
    finally:
        for process in (mine, other):
            process.kill()
            process.communicate()


def test_wake_of_an_exited_elastic_worker_raises_no_error():
    exited = subprocess.Popen(["true"])
    exited.wait()

    wake(exited.pid, Process(exited.pid, 0.0))


SPEEDS = {
    "nothing is known": ({}, 4, {}),
    "one size: larger ones in proportion": ({1: 10.0}, 4, {"1": 10_000, "4": 40_000}),
    "the largest is known": ({1: 10.0, 4: 30.0}, 4, {"1": 10_000, "4": 30_000}),
    "the next one paid": ({1: 10.0, 2: 11.0}, 4, {"1": 10_000, "2": 11_000, "4": 22_000}),
    "the next one did not pay": ({1: 10.0, 2: 10.9}, 4, {"1": 10_000}),
    "slower": ({1: 10.0, 2: 8.0}, 4, {"1": 10_000}),
    "a step that pays later": ({1: 10.0, 2: 10.0, 3: 14.0}, 3, {"1": 10_000, "3": 14_000}),
}


@pytest.mark.parametrize(("measured", "max_size", "expected"), SPEEDS.values(), ids=SPEEDS)
def test_elastic_throughput_of_unmeasured_sizes_is_extrapolated_from_measured_speeds(
    measured, max_size, expected
):
    assert throughput_for_core(measured, max_size) == expected
    assert throughput_for_core(measured, max_size, pays_from=None) == {}
