"""Watching processes that are not our children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Generator

import psutil
import pytest

from labs import sleeping
from runai.hub_service.clusters.local.processes import Watch, end_tree, kill_leftovers
from runai.hub_service.clusters.records import Process


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


def _created(pid: int) -> float:
    return psutil.Process(pid).create_time()


async def test_it_tells_once_when_a_process_has_ended(kernel, sleeper):
    ended = asyncio.Event()
    watch = Watch(sleeper.pid, _created(sleeper.pid), ended.set)

    watch.send(signal.SIGTERM)

    async with asyncio.timeout(30):
        await ended.wait()


async def test_a_process_that_is_gone_has_ended(kernel, sleeper):
    created = _created(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    ended = asyncio.Event()

    Watch(sleeper.pid, created, ended.set)

    async with asyncio.timeout(30):
        await ended.wait()


async def test_a_number_that_is_somebody_elses_now_has_ended_and_gets_no_signal(kernel, sleeper):
    ended = asyncio.Event()
    watch = Watch(sleeper.pid, _created(sleeper.pid) - 60, ended.set)

    watch.send(signal.SIGKILL)

    async with asyncio.timeout(30):
        await ended.wait()
    assert None is sleeper.poll()


async def test_a_closed_watch_is_silent(kernel, sleeper):
    ended = asyncio.Event()
    Watch(sleeper.pid, _created(sleeper.pid), ended.set).close()
    heard = asyncio.Event()
    Watch(sleeper.pid, _created(sleeper.pid), heard.set)

    sleeper.kill()

    async with asyncio.timeout(30):
        await heard.wait()
    assert not ended.is_set()


def test_a_tree_ends_whole(eventually):
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"], start_new_session=True
    )
    eventually(lambda: len(psutil.Process(shell.pid).children()) == 2)
    children = psutil.Process(shell.pid).children()

    end_tree(Process(shell.pid, _created(shell.pid) - 60))
    assert all(child.is_running() for child in children)
    end_tree(Process(shell.pid, _created(shell.pid)))

    shell.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def test_leftovers_are_known_by_the_workers_name():
    mine, other, old = (
        subprocess.Popen(["sleep", "1000"], env={"RUNAI_WORKER": name})
        for name in ("vision/exp-0", "vision/exp-00", "vision/exp-0")
    )
    try:
        old_enough = psutil.Process(old.pid).create_time() + 3600
        kill_leftovers("vision/exp-0", old_enough)
        assert None is mine.poll()

        kill_leftovers("vision/exp-0", 0.0)

        assert not psutil.pid_exists(mine.pid)
        assert None is other.poll()
    finally:
        for process in (mine, other, old):
            process.kill()
            process.wait()
