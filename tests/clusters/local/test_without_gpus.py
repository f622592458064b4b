"""Jobs without a GPU on this machine: real processes run while their CPU and memory are free."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psutil
import pytest

from labs import Clock, LocalLab, decision_loop, local_lab
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from waiting import eventually_async


@contextlib.asynccontextmanager
async def two_cpus(
    tmp_path: Path, clock: Clock | None = None, *, forget: bool = True
) -> AsyncGenerator[LocalLab]:
    """Open a cluster that decides, on a machine of two CPUs and 4 GiB."""
    capacity = NodeCapacity(2000, 4096)
    async with local_lab(tmp_path, clock, forget=forget, capacity=capacity) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        async with decision_loop(lab.cluster):
            yield lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[LocalLab]:
    async with two_cpus(tmp_path) as opened:
        yield opened


def cpu_job(lab: LocalLab, name: str, **fields: Any) -> WorkloadSpec:
    """Return a job that requests half of the machine's CPUs and a quarter of its memory."""
    requests: dict[str, Any] = {"gpus": 0, "cpu_milli": 1000, "memory_mib": 1024}
    return lab.job(name, **(requests | fields))


def cpu_jobs(lab: LocalLab, count: int, **fields: Any) -> list[WorkloadSpec]:
    return [cpu_job(lab, f"exp-{n}", **fields) for n in range(count)]


def count_programs(lab: LocalLab) -> int:
    """Count the running programs of jobs, by the path of their orders."""
    processes = psutil.process_iter(["cmdline"])
    return sum(str(lab.place) in (process.info["cmdline"] or ())[-2:-1] for process in processes)


async def wait_for_states(lab: LocalLab, **expected: str) -> None:
    """Wait until workloads are in these states."""

    async def has_states() -> bool:
        states = {
            r.spec.name.replace("-", "_"): str(r.state) for r in await lab.cluster.workloads()
        }
        return {name: states.get(name) for name in expected} == expected

    await eventually_async(has_states)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="CPU"),
        pytest.param({"cpu_milli": 500, "memory_mib": 2048}, id="memory"),
    ],
)
async def test_cpu_jobs_start_in_order_while_cpu_and_memory_are_free(lab, fields):
    """The machine has two CPUs and 4 GiB; two jobs use all of one of them."""
    jobs = cpu_jobs(lab, 4, **fields)
    await lab.cluster.submit(jobs)

    await wait_for_states(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")
    assert count_programs(lab) == 2

    await lab.end(jobs[1], 0)
    await wait_for_states(lab, exp_0="running", exp_1="succeeded", exp_2="running", exp_3="queued")
    assert count_programs(lab) == 2


async def test_gpu_job_without_a_cpu_request_starts_while_all_cpus_are_in_use(lab):
    await lab.cluster.submit(cpu_jobs(lab, 3))
    await wait_for_states(lab, exp_0="running", exp_1="running", exp_2="queued")

    await lab.cluster.submit([lab.job("trains")])

    await wait_for_states(lab, exp_2="queued", trains="running")


async def test_job_with_a_gpu_waits_for_the_cpus_that_it_requests(lab):
    jobs = cpu_jobs(lab, 1)
    # One of two CPUs is free.
    await lab.cluster.submit([*jobs, lab.job("trains", cpu_milli=1500)])

    await wait_for_states(lab, exp_0="running", trains="queued")
    await lab.end(jobs[0], 0)
    await wait_for_states(lab, exp_0="succeeded", trains="running")


async def test_suspended_job_frees_its_cpu_and_waits_for_one_when_resumed(lab):
    jobs = cpu_jobs(lab, 3, on_term=143)
    await lab.cluster.submit(jobs)
    await wait_for_states(lab, exp_0="running", exp_1="running", exp_2="queued")
    await asyncio.gather(lab.ready(jobs[0]), lab.ready(jobs[1]))

    await lab.cluster.suspend(jobs[0].id, by="ana")
    await wait_for_states(lab, exp_0="suspended", exp_1="running", exp_2="running")
    await lab.cluster.resume(jobs[0].id, by="ana")
    await wait_for_states(lab, exp_0="paused", exp_1="running", exp_2="running")

    await lab.end(jobs[1], 0)
    await wait_for_states(lab, exp_0="running", exp_1="succeeded", exp_2="running")


async def test_running_jobs_retain_their_cpus_over_a_restart(tmp_path):
    clock = Clock()
    async with two_cpus(tmp_path, clock, forget=False) as lab:
        jobs = cpu_jobs(lab, 4)
        await lab.cluster.submit(jobs)
        await wait_for_states(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")

    async with two_cpus(tmp_path, clock) as lab:
        await wait_for_states(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")
        await lab.end(jobs[0], 0)
        await wait_for_states(
            lab, exp_0="succeeded", exp_1="running", exp_2="running", exp_3="queued"
        )
        assert count_programs(lab) == 2
