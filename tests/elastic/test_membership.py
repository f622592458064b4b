"""A worker's view of its cluster, its messages to the cluster, and its signal handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from runai.elastic.membership import Membership, StopRequest
from runai.hub_service.wire.elastic_messages import ElasticFiles, Reason, Target, WorkerPhase

TARGET = Target(1, ("a", "b"), "127.0.0.1:1", gpus=2, least=1, most=4)


@pytest.fixture
def worker(tmp_path):
    return Membership(tmp_path, "vision/a")


def _write_target(worker, **changes):
    worker.files.write_target(replace(TARGET, **changes))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="no-platform"),
        pytest.param({"RUNAI_ELASTIC_DIR": ""}, None, id="empty-directory"),
        pytest.param({"RUNAI_ELASTIC_DIR": "/e", "RUNAI_WORKER": "p/j-0"}, "p/j-0", id="worker"),
    ],
)
def test_elastic_worker_reads_its_name_from_the_environment(environ, expected):
    membership = Membership.from_environment(environ)

    assert (membership and membership.worker) == expected


def test_elastic_directory_variable_without_a_worker_variable_is_an_error():
    with pytest.raises(ValueError, match=r"RUNAI_ELASTIC_DIR is /e.*RUNAI_WORKER"):
        Membership.from_environment({"RUNAI_ELASTIC_DIR": "/e"})


def _read_status(worker):
    status = worker.files.status(worker.worker)
    assert status is not None
    return status


def test_worker_reads_no_target_before_the_first_is_written(worker):
    assert worker.read_target() is None


def test_worker_reads_a_newer_target_and_ignores_an_older_target(worker):
    _write_target(worker, gen=2)
    assert worker.read_target().gen == 2

    _write_target(worker, gen=5, ranks=("b", "a"))
    assert worker.read_target().gen == 5
    assert worker.rank_in(worker.target) == 1

    _write_target(worker, gen=4)
    assert worker.read_target().gen == 5


def test_malformed_target_file_is_ignored(worker):
    _write_target(worker)
    worker.read_target()
    worker.files.target_path.write_text("{")

    assert worker.read_target().gen == 1

    _write_target(worker, gen=2)
    assert worker.read_target().gen == 2


@pytest.mark.parametrize(
    ("gen", "target", "excluded"),
    [
        pytest.param(1, {"gen": 2}, False, id="still-a-rank"),
        pytest.param(1, {"gen": 2, "ranks": ("b",)}, True, id="former-rank"),
        pytest.param(0, {"gen": 2, "ranks": ("b",)}, False, id="worker-that-waits"),
        pytest.param(0, {"ranks": (), "reason": Reason.PAUSE}, True, id="pause"),
    ],
)
def test_target_excludes_dropped_workers_and_a_pause_excludes_all(worker, gen, target, excluded):
    worker.gen = gen

    assert worker.is_excluded_by(replace(TARGET, **target)) is excluded


def test_elastic_worker_ignores_a_pause_from_before_its_start(worker):
    _write_target(worker, gen=4, ranks=(), reason=Reason.PAUSE)
    assert not worker.is_excluded_by(worker.read_target())

    _write_target(worker, gen=5, ranks=(), reason=Reason.PAUSE)
    assert worker.is_excluded_by(worker.read_target())


def test_elastic_worker_reports_progress_once_a_second_with_the_group_speed(tmp_path):
    now = 0.0
    worker = Membership(tmp_path, "a", clock=lambda: now)
    worker.gen = 3
    worker.progress(1, samples=100, gpus=2)
    now = 0.5
    worker.progress(2, samples=200, gpus=2)

    assert _read_status(worker).update == 1

    now = 2.0
    worker.progress(5, samples=500, gpus=2, global_batch=100, steps=3)
    status = _read_status(worker)

    assert (status.global_batch, status.steps) == (100, 3)
    assert (status.update, status.gpus, status.gen) == (5, 2, 3)
    assert status.samples_per_s == (500 - 100) / 2
    assert (status.state, status.pid) == (WorkerPhase.RUNNING, os.getpid())

    worker.progress(6, samples=600, gpus=4)
    assert _read_status(worker).samples_per_s == 0.0, "the speed of another size is unknown"


def test_elastic_worker_report_that_cannot_be_written_raises_nothing(tmp_path):
    (tmp_path / "status").write_text("no directory")

    Membership(tmp_path, "a").report(WorkerPhase.READY)


def test_stop_request_notes_sigterm_and_calls_the_previous_handler():
    events: list[object] = []
    before = signal.signal(signal.SIGTERM, lambda *_: events.append("before"))
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # undo earlier tests
    stop = StopRequest({})
    try:
        stop.listen()
        events.append(stop.is_requested)

        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)

        assert stop.is_requested
        assert events == [False, "before"]
        with pytest.raises(SystemExit) as exit_info:
            signal.raise_signal(signal.SIGTERM)
        assert exit_info.value.code == 143
    finally:
        stop.close()
        assert signal.signal(signal.SIGTERM, before) is not stop._on_sigterm
    # The cluster may still signal this worker, unaware that it has finished.
    assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is signal.SIG_IGN


def test_stop_request_sets_no_handler_off_the_main_thread():
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=StopRequest({}).listen)
    thread.start()
    thread.join()

    assert signal.getsignal(signal.SIGTERM) is before


def test_importing_elastic_sets_no_handler_and_loads_no_framework():
    program = (
        "import signal, sys, runai.elastic, runai.elastic.membership, runai.elastic.checkpoint,"
        "runai.elastic.run; "
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL; "
        "assert not {'torch', 'numpy', 'keras', 'jax', 'tensorflow'} & set(sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_worker_stops_when_its_launcher_is_killed(tmp_path):
    program = """
import os, sys, time
from runai.elastic.membership import StopRequest
if os.fork():
    sys.stdin.read()
    os._exit(0)
stop = StopRequest({"RUNAI_LAUNCHER_PID": str(os.getppid())})
print(stop.is_requested, flush=True)
while not stop.is_requested:
    time.sleep(0.01)
print(stop.is_requested, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "False\n"
        launcher.kill()
        assert launcher.stdout.readline() == "True\n"


def test_elastic_worker_status_is_stored_under_its_short_name(worker, tmp_path):
    worker.report(WorkerPhase.READY, update=7)

    assert ElasticFiles(tmp_path).statuses()["a"].update == 7


def test_forked_child_of_an_elastic_worker_neither_reports_nor_notes_sigterm(tmp_path):
    program = f"""
import json, multiprocessing, os, signal, sys
from pathlib import Path
from runai.elastic.membership import Membership, StopRequest
from runai.hub_service.wire.elastic_messages import WorkerPhase

before = []
signal.signal(signal.SIGUSR1, lambda *_: before.append("SIGUSR1"))
member, stop = Membership(Path({str(tmp_path)!r}), "a"), StopRequest()
stop.listen()
member.report(WorkerPhase.RUNNING)
answers = multiprocessing.get_context("fork").SimpleQueue()
if not (child := os.fork()):
    os.kill(os.getpid(), signal.SIGUSR1)
    stop._sigterm_received = True
    member.report(WorkerPhase.LEFT)
    answers.put((before, stop.is_requested))
    signal.pause()
print(answers.get())
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), before, stop.is_requested)
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )

    assert completed.stdout.splitlines() == ["(['SIGUSR1'], False)", "-15 [] False"]
    assert ElasticFiles(tmp_path).statuses()["a"].state is WorkerPhase.RUNNING


def test_multiprocessing_pool_in_an_elastic_worker_can_be_terminated():
    program = """
import multiprocessing
from runai.elastic.membership import StopRequest
StopRequest({}).listen()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, 2]))
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )

    assert completed.stdout == "[1, 2]\n"
