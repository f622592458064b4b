"""A service at its limit of file descriptors: it goes on, and does the rest later."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from labs import local_lab, plan, sleeping, start
from runai.hub_service.clusters.local.processes import reconciler
from runai.hub_service.clusters.local.processes.process_watch import ProcessWatch, lasting
from runai.hub_service.model.records import Process
from waiting import eventually_async

RAISE_LIMIT_PROGRAM = """
import resource, subprocess
from runai.hub_service.processes.own_process import max_descriptors, raise_descriptor_limit
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE), max_descriptors())
"""


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Use up this process's file descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def short_retry_delay(monkeypatch):
    monkeypatch.setattr(reconciler, "RETRY_AFTER_S", 0.1)


@pytest.mark.usefixtures("short_retry_delay")
async def test_job_start_without_a_free_file_descriptor_is_made_when_one_is_free(tmp_path, caplog):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.cluster.submit([spec])
        with no_descriptors_left():
            assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
            await eventually_async(lambda: "Too many open files" in caplog.text)
            assert (await lab.cluster.workload(spec.id)).state == "starting"

        assert (await lab.until(spec.id, "running")).attempts == 1


@pytest.mark.usefixtures("short_retry_delay")
async def test_job_exit_without_a_free_file_descriptor_is_noticed_when_one_is_free(
    tmp_path, caplog
):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.started(spec)
        process = (await lab.cluster.workload(spec.id)).workers[0].process
        assert process is not None
        with no_descriptors_left():
            os.kill(process.pid, signal.SIGKILL)
            await eventually_async(lambda: "Too many open files" in caplog.text)
            assert (await lab.cluster.workload(spec.id)).state == "running"

        assert (await lab.until(spec.id, "failed")).exit_code == -signal.SIGKILL


async def test_process_watch_without_a_free_descriptor_reports_no_exit():
    sleeper = sleeping()
    reported_exits: list[bool] = []
    try:
        process = lasting(Process(sleeper.pid, psutil.Process(sleeper.pid).create_time()))
        with no_descriptors_left():
            ProcessWatch(sleeper.pid, process, lambda: reported_exits.append(True))
            await asyncio.sleep(0)
        assert reported_exits == []
        sleeper.kill()
        await eventually_async(lambda: reported_exits == [True])
    finally:
        sleeper.kill()


async def test_job_gets_the_descriptor_limit_the_service_started_with(tmp_path):
    open_files = 321
    async with local_lab(tmp_path, open_files=open_files) as lab:
        spec = lab.job()
        await lab.started(spec)
        process = (await lab.cluster.workload(spec.id)).workers[0].process
        assert process is not None

        limits = psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert limits == (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_service_raises_its_descriptor_limit_and_returns_the_former():
    # An account may not raise its own hard limit.
    hard_limit = min(5000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    command = ["prlimit", f"--nofile=256:{hard_limit}", sys.executable, "-c", RAISE_LIMIT_PROGRAM]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert output == f"256 ({hard_limit}, {hard_limit}) {hard_limit}\n"
