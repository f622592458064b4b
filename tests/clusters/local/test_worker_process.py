"""Watching of processes that are not our children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Generator
from dataclasses import replace

import psutil
import pytest

from labs import sleeping
from runai.hub_service.clusters.local.processes.process_watch import (
    ProcessWatch,
    at_present_clock,
    end_tree,
    is_same,
    kill_leftovers,
    lasting,
)
from runai.hub_service.model.records import Process


@pytest.fixture
def sleeper() -> Generator[subprocess.Popen[bytes]]:
    process = sleeping()
    yield process
    process.kill()
    process.wait()


@pytest.fixture(params=["pidfd", "no pidfd"])
def kernel(request, monkeypatch):
    """Run once as on a kernel without pidfds."""
    if request.param == "no pidfd":

        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)


def _process_of(pid: int, earlier: float = 0.0) -> Process:
    return Process(pid, psutil.Process(pid).create_time() - earlier)


@pytest.fixture
def set_clock(monkeypatch):
    """Return a function that shifts the clock by so many seconds, as the boot time shows it."""
    booted = psutil.boot_time()

    def set_by(seconds: float) -> None:
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + seconds)

    return set_by


async def test_process_watch_reports_the_exit_of_its_process(kernel, sleeper):
    ended = asyncio.Event()
    watch = ProcessWatch(sleeper.pid, _process_of(sleeper.pid), ended.set)

    watch.send(signal.SIGTERM)

    async with asyncio.timeout(90):
        await ended.wait()


async def test_process_watch_reports_a_process_that_exited_before_the_watch_began(kernel, sleeper):
    expected_process = _process_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    ended = asyncio.Event()

    ProcessWatch(sleeper.pid, expected_process, ended.set)

    async with asyncio.timeout(90):
        await ended.wait()


async def test_process_watch_of_a_reused_pid_reports_an_exit_and_sends_no_signal(kernel, sleeper):
    ended = asyncio.Event()
    watch = ProcessWatch(sleeper.pid, _process_of(sleeper.pid, earlier=60), ended.set)

    watch.send(signal.SIGKILL)

    async with asyncio.timeout(90):
        await ended.wait()
    assert None is sleeper.poll()


async def test_closed_process_watch_reports_nothing_at_an_exit(kernel, sleeper):
    ended = asyncio.Event()
    ProcessWatch(sleeper.pid, _process_of(sleeper.pid), ended.set).close()
    reported = asyncio.Event()
    ProcessWatch(sleeper.pid, _process_of(sleeper.pid), reported.set)

    sleeper.kill()

    async with asyncio.timeout(90):
        await reported.wait()
    assert not ended.is_set()


def test_process_tree_end_kills_descendants_but_none_of_a_reused_pid(eventually):
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"], start_new_session=True
    )
    eventually(lambda: len(psutil.Process(shell.pid).children()) == 2)
    children = psutil.Process(shell.pid).children()

    end_tree(_process_of(shell.pid, earlier=60))
    assert all(child.is_running() for child in children)
    end_tree(_process_of(shell.pid))

    shell.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def start_leftover(checkpoint_dir, worker="vision/exp-0"):
    names = {"RUNAI_WORKER": worker, "RUNAI_CHECKPOINT_DIR": str(checkpoint_dir)}
    return subprocess.Popen(["sleep", "1000"], env=names)


def test_leftovers_are_recognised_by_worker_name_and_checkpoint_dir(tmp_path):
    leftover = start_leftover(tmp_path)
    unrelated = [
        start_leftover(tmp_path, "vision/exp-00"),
        start_leftover(tmp_path / "other installation"),
    ]
    try:
        an_hour_later = psutil.Process(leftover.pid).create_time() + 3600
        kill_leftovers("vision/exp-0", str(tmp_path), an_hour_later)
        assert None is leftover.poll()

        kill_leftovers("vision/exp-0", str(tmp_path), 0.0)

        assert not psutil.pid_exists(leftover.pid)
        assert [process.poll() for process in unrelated] == [None, None]
    finally:
        for process in (leftover, *unrelated):
            process.kill()
            process.wait()


def test_leftover_process_that_has_just_been_started_is_killed(monkeypatch, tmp_path):
    leftover = start_leftover(tmp_path)
    read_environ, pids = psutil.Process.environ, []

    def environ(process):
        """Return no variables at the first two reads, as for a process that has just begun."""
        pids.append(process.pid)
        is_early = process.pid == leftover.pid and pids.count(leftover.pid) < 3
        return {} if is_early else read_environ(process)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    try:
        kill_leftovers("vision/exp-0", str(tmp_path), 0.0)

        assert not psutil.pid_exists(leftover.pid)
    finally:
        leftover.kill()
        leftover.wait()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0], ids=["forward", "back"])
async def test_worker_process_is_recognised_after_the_clock_was_set(
    seconds, kernel, sleeper, set_clock
):
    process = lasting(_process_of(sleeper.pid))
    set_clock(seconds)
    ended = asyncio.Event()

    ProcessWatch(sleeper.pid, process, ended.set)
    await asyncio.sleep(0)

    assert not ended.is_set()
    assert is_same(process, lasting(_process_of(sleeper.pid)))
    assert at_present_clock(process).created == psutil.Process(sleeper.pid).create_time()
    end_tree(process)
    async with asyncio.timeout(90):
        await ended.wait()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0], ids=["forward", "back"])
def test_leftovers_are_killed_after_the_clock_was_set(seconds, set_clock, tmp_path):
    leftover = start_leftover(tmp_path)
    try:
        expected_process = lasting(_process_of(leftover.pid))
        set_clock(seconds)

        kill_leftovers("vision/exp-0", str(tmp_path), expected_process.created, expected_process)

        assert not psutil.pid_exists(leftover.pid)
    finally:
        leftover.kill()
        leftover.wait()


def test_worker_process_of_an_earlier_boot_does_not_match_a_reused_pid(sleeper):
    process = lasting(_process_of(sleeper.pid))

    assert not is_same(process, replace(process, boot="another"))
    assert not is_same(process, replace(process, ticks=0))
