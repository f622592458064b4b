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

TARGET = Target(gen=3, ranks=("vision/e-0",), store="127.0.0.1:4000", gpus=1, least=1, most=4)
STATUS = WorkerStatus("vision/e-0", gen=3, state=WorkerPhase.RUNNING, pid=12)


@pytest.fixture
def elastic_dir(tmp_path: Path) -> ElasticDir:
    (tmp_path / "elastic" / "status").mkdir(parents=True)
    return ElasticDir(tmp_path / "elastic", None)


def test_elastic_target_and_worker_status_files_are_read_as_they_were_written(elastic_dir):
    files = ElasticFiles(elastic_dir.path)
    files.write_status(STATUS)

    assert elastic_dir.write_target(TARGET)
    assert files.target() == TARGET
    assert elastic_dir.statuses(["vision/e-0", "vision/e-1"]) == {"vision/e-0": STATUS}
    assert (elastic_dir.path / "target.json").stat().st_mode & 0o777 == 0o600


def test_forget_status_removes_the_last_status_report_of_an_elastic_worker(elastic_dir):
    ElasticFiles(elastic_dir.path).write_status(STATUS)
    elastic_dir.forget_status("vision/e-0")
    elastic_dir.forget_status("vision/e-0")

    assert elastic_dir.statuses(["vision/e-0"]) == {}


def test_missing_elastic_dir_is_neither_used_nor_created(tmp_path):
    elastic_dir = ElasticDir(tmp_path / "none", None)

    assert not elastic_dir.write_target(TARGET)
    assert elastic_dir.statuses(["vision/e-0"]) == {}
    assert not (tmp_path / "none").exists()


def test_elastic_dir_of_a_foreign_account_is_not_used(elastic_dir):
    foreign_dir = ElasticDir(elastic_dir.path, os.getuid() + 1)
    ElasticFiles(elastic_dir.path).write_status(STATUS)

    assert not foreign_dir.write_target(TARGET)
    assert foreign_dir.statuses(["vision/e-0"]) == {}


def test_link_in_place_of_the_elastic_dir_is_not_followed(elastic_dir, tmp_path):
    (tmp_path / "link").symlink_to(elastic_dir.path)

    assert not ElasticDir(tmp_path / "link", None).write_target(TARGET)
    assert list(elastic_dir.path.glob("*.json")) == []


def test_link_in_place_of_the_elastic_target_file_is_replaced_not_followed(elastic_dir, tmp_path):
    target_of_link = tmp_path / "victim"
    target_of_link.write_text("unchanged")
    (elastic_dir.path / "target.json").symlink_to(target_of_link)
    (elastic_dir.path / ".target.json.new").symlink_to(target_of_link)

    assert elastic_dir.write_target(TARGET)
    assert target_of_link.read_text() == "unchanged"
    assert ElasticFiles(elastic_dir.path).target() == TARGET


def _link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.write_text(json.dumps(STATUS.to_json()))
    path.symlink_to(elsewhere)


INVALID_STATUS_FILES = {
    "link": _link,
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "invalid JSON": lambda path: path.write_text("{"),
    "invalid UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "too long": lambda path: path.write_text(json.dumps({"worker": "x" * MAX_BYTES})),
}


@pytest.mark.parametrize("make_file", INVALID_STATUS_FILES.values(), ids=INVALID_STATUS_FILES)
def test_invalid_elastic_worker_status_files_are_skipped(elastic_dir, make_file):
    make_file(elastic_dir.path / "status" / "e-0.json")

    assert elastic_dir.statuses(["vision/e-0"]) == {}


LISTENER = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"woken\\n"))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def test_wake_of_an_elastic_worker_signals_only_a_process_of_its_session():
    worker_process, other_process = (
        subprocess.Popen(
            [sys.executable, "-c", LISTENER],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    )
    try:
        assert worker_process.stdout is not None
        assert other_process.stdout is not None
        assert worker_process.stdout.readline() == "ready\n"
        assert other_process.stdout.readline() == "ready\n"
        worker = Process(worker_process.pid, psutil.Process(worker_process.pid).create_time())
        wake(other_process.pid, worker)  # the status of the worker may name any PID
        wake(worker_process.pid, worker)

        assert worker_process.stdout.readline() == "woken\n"
        wake(other_process.pid, Process(other_process.pid, 0.0))
        assert other_process.stdout.readline() == "woken\n", "the first wake sent no signal"
        other_process.send_signal(signal.SIGKILL)
        assert other_process.stdout.read() == ""
    finally:
        for process in (worker_process, other_process):
            process.kill()
            process.communicate()


def test_wake_of_an_exited_elastic_worker_raises_no_error():
    exited = subprocess.Popen(["true"])
    exited.wait()

    wake(exited.pid, Process(exited.pid, 0.0))


# Speeds by number of GPUs; a GPU pays if it adds a tenth of the gain in proportion.
SPEEDS = {
    "no measurement": ({}, 4, {}),
    "one size measured": ({1: 10.0}, 4, {"1": 10_000, "4": 40_000}),
    "largest size measured": ({1: 10.0, 4: 30.0}, 4, {"1": 10_000, "4": 30_000}),
    "second GPU pays": ({1: 10.0, 2: 11.0}, 4, {"1": 10_000, "2": 11_000, "4": 22_000}),
    "second GPU does not pay": ({1: 10.0, 2: 10.9}, 4, {"1": 10_000}),
    "second GPU slows the job": ({1: 10.0, 2: 8.0}, 4, {"1": 10_000}),
    "third GPU pays": ({1: 10.0, 2: 10.0, 3: 14.0}, 3, {"1": 10_000, "3": 14_000}),
}


@pytest.mark.parametrize(("measured", "max_size", "expected"), SPEEDS.values(), ids=SPEEDS)
def test_elastic_throughput_of_unmeasured_sizes_is_extrapolated_from_measured_speeds(
    measured, max_size, expected
):
    assert throughput_for_core(measured, max_size) == expected
    assert throughput_for_core(measured, max_size, pays_from=None) == {}
