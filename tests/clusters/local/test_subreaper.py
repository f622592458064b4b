"""Supervisor or witness is killed: the worker's exit status is known all the same."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from runai.hub_service.clusters.states.transition import ExitStatus
from starts import has_ended

PROGRAM_DEAF_TO_ITS_PARENTS_DEATH = """
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
print(os.getpid())
time.sleep(1000)
"""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ("sh", "-c", "env -i setsid sleep 1000 & echo $!; exec sleep 1000"),
            id="cleared environment",
        ),
        pytest.param(
            (sys.executable, "-I", "-S", "-u", "-c", PROGRAM_DEAF_TO_ITS_PARENTS_DEATH),
            id="no signal at its parent's death",
        ),
    ],
)
def test_job_attempt_of_a_killed_supervisor_is_locked_until_its_processes_end(
    start, command, eventually
):
    start(*command)
    eventually(lambda: "\n" in start.output())
    leftover, worker = psutil.Process(int(start.output())), start.worker
    try:
        start.supervisor.kill()
        eventually(lambda: start.attempt.holder() is None)

        assert not leftover.is_running()
        assert not worker.is_running()
        assert start.attempt.begun()
        assert start.attempt.final_exit() is None
        assert start.attempt.program_exit() is None
    finally:
        with suppress(psutil.NoSuchProcess):
            leftover.kill()


@pytest.mark.parametrize("exit_code", [0, 3], ids=["success", "failure"])
def test_worker_exit_not_yet_noticed_by_a_killed_supervisor_is_recorded(
    start, tmp_path, eventually, exit_code
):
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    start("sh", "-c", f"read -r code < {orders}; exit $code")
    supervisor, worker = start.supervisor, start.worker
    supervisor.suspend()
    orders.write_text(f"{exit_code}\n")
    eventually(lambda: has_ended(worker))

    supervisor.kill()
    os.waitpid(start.pid, 0)

    assert None is start.attempt.final_exit()
    assert ExitStatus(exit_code) == start.attempt.program_exit()


def test_worker_exit_is_noted_before_its_leftover_processes_end(start, eventually):
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    start("sh", "-c", f'setsid sh -c "{stubborn}" & while :; do sleep 0.05; done', grace_seconds=60)
    eventually(lambda: start.printed("ready"))
    start.stop()
    eventually(lambda: start.attempt.program_exit() is not None)

    start.supervisor.kill()
    os.waitpid(start.pid, 0)

    assert None is start.attempt.final_exit()
    assert ExitStatus(-15, stop_requested=True) == start.attempt.program_exit()


def test_worker_stop_under_a_frozen_supervisor_is_recorded_after_it_is_killed(
    start, tmp_path, eventually
):
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    start("sh", "-c", f"trap 'exit 143' TERM; echo ready; read -r _ < {orders}")
    eventually(lambda: start.printed("ready"))
    supervisor, worker = start.supervisor, start.worker
    supervisor.suspend()
    start.stop()
    worker.terminate()  # the supervisor would, were it not frozen
    eventually(lambda: has_ended(worker))

    supervisor.kill()
    os.waitpid(start.pid, 0)

    assert ExitStatus(143, stop_requested=True) == start.attempt.program_exit()


def test_supervisor_records_its_worker_exit_after_its_witness_is_killed(
    start, tmp_path, eventually
):
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    start("sh", "-c", f"read -r code < {orders}; exit $code")
    supervisor = start.supervisor
    assert start.pid == start.attempt.holder()

    os.kill(start.pid, signal.SIGKILL)
    os.waitpid(start.pid, 0)
    assert supervisor.pid == start.attempt.holder()
    second_pid = start("sh", "-c", "echo twice").pid
    os.waitpid(second_pid, 0)  # it ends at once: the attempt is locked
    assert supervisor.pid == start.attempt.holder()

    orders.write_text("0\n")
    eventually(lambda: start.attempt.holder() is None)
    assert ExitStatus(0) == start.attempt.final_exit()
    assert start.output() == ""
