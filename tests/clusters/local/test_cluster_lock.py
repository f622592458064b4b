"""The cluster lock: one process has a cluster open; a waiting one logs the holder once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from runai.hub_service.clusters.local.store import cluster_lock
from runai.hub_service.clusters.local.store.cluster_lock import (
    LOCK,
    LockHolder,
    claim,
    holder,
    sole_owner,
)
from runai.hub_service.wire.errors import Conflict
from waiting import eventually_async


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / LOCK


async def test_process_that_waits_for_the_cluster_lock_logs_the_lock_owner_once(
    lock, monkeypatch, caplog
):
    monkeypatch.setattr(cluster_lock, "LOG_AFTER_S", 0.0)
    monkeypatch.setattr(cluster_lock, "WAIT_FOR_LOCK_S", 0.001)
    polls = iter(range(5))  # enough for a second log line
    fd = claim(lock.parent)
    try_acquire = cluster_lock._try_acquire
    has_polled = asyncio.Event()

    def counting_try_acquire(fd: int, root: Path) -> bool:
        if next(polls, None) is None:
            has_polled.set()
        return try_acquire(fd, root)

    monkeypatch.setattr(cluster_lock, "_try_acquire", counting_try_acquire)

    async def open_second() -> None:
        async with sole_owner(lock):
            pass

    waiting_open = asyncio.ensure_future(open_second())
    await has_polled.wait()
    os.close(fd)
    await waiting_open

    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"waiting: the cluster is open elsewhere (process {os.getpid()}, since ")
    assert f"kill -CONT {os.getpid()}" in line


async def test_process_that_acquires_a_free_cluster_lock_logs_nothing(lock, monkeypatch, caplog):
    monkeypatch.setattr(cluster_lock, "LOG_AFTER_S", 0.0)

    async with sole_owner(lock):
        known = holder(lock)

    assert known is not None
    assert known.pid == os.getpid()
    assert holder(lock) is None
    assert caplog.records == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"who": 7}', "7"])
def test_cluster_lock_of_an_earlier_version_has_an_unknown_owner(content, lock):
    fd = claim(lock.parent)
    lock.write_text(content)

    assert holder(lock) == LockHolder()
    with pytest.raises(Conflict, match="a process that does not say which") as refused:
        claim(lock.parent)

    assert "kill -TERM PID" in refused.value.hint
    os.close(fd)


async def test_concurrent_owners_have_the_cluster_lock_one_after_the_other(lock):
    order = []

    async def append_as_owner(name: str) -> None:
        async with sole_owner(lock):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(append_as_owner("a"), append_as_owner("b"))
    await eventually_async(lambda: len(order) == 4)

    assert order in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
