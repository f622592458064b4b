"""Jobs without a GPU on this machine: no more workers at once than its CPU cores bear.

`test_cpu_job_bound` covers the choice; here real processes follow it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deciding import decided
from labs import Clock, LocalLab, local_lab
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from waiting import eventually_async

FULL = "ana runs 2 of at most 2 workers without a GPU (2 for the only core)"
NEXT = f"{FULL}; the next starts when one ends"


@contextlib.asynccontextmanager
async def one_core(
    tmp_path: Path, clock: Clock | None = None, *, forget: bool = True
) -> AsyncGenerator[LocalLab]:
    """Open a cluster that decides, on a machine of one core: two workers a user, eight in all."""
    async with local_lab(tmp_path, clock, forget=forget, cores=1) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        async with decided(lab.cluster):
            yield lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[LocalLab]:
    async with one_core(tmp_path) as opened:
        yield opened


def without(lab: LocalLab, name: str, **fields: Any) -> WorkloadSpec:
    return lab.job(name, gpus=0, **fields)


def array(lab: LocalLab, many: int, **fields: Any) -> list[WorkloadSpec]:
    return [without(lab, f"exp-{n}", **fields) for n in range(many)]


def programs(lab: LocalLab) -> int:
    """Count the running programs of jobs, by the path of their orders."""
    found = psutil.process_iter(["cmdline"])
    return sum(str(lab.place) in (process.info["cmdline"] or ())[-2:-1] for process in found)


async def settled(lab: LocalLab, **expected: str) -> None:
    """Wait until workloads are in these states, and these numbers of their programs run."""

    async def is_so() -> bool:
        states = {
            r.spec.name.replace("-", "_"): str(r.state) for r in await lab.cluster.workloads()
        }
        return {name: states.get(name) for name in expected} == expected

    await eventually_async(is_so)


async def reasons(lab: LocalLab) -> dict[str, tuple[int | None, str]]:
    return {
        record.spec.name: (record.position, record.reason.text)
        for record in await lab.cluster.workloads()
        if record.reason is not None and record.position is not None
    }


async def test_array_runs_two_at_a_time_in_order(lab):
    jobs = array(lab, 4)
    await lab.cluster.submit(jobs)

    await settled(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")
    await eventually_async(lambda: reasons(lab))
    assert await reasons(lab) == {"exp-2": (1, NEXT), "exp-3": (2, NEXT)}
    assert programs(lab) == 2

    await lab.end(jobs[1], 0)
    await settled(lab, exp_0="running", exp_1="succeeded", exp_2="running", exp_3="queued")
    assert programs(lab) == 2


async def test_job_with_a_gpu_and_notebook_without_one_are_not_bounded(lab):
    await lab.cluster.submit(array(lab, 3))
    await settled(lab, exp_0="running", exp_1="running", exp_2="queued")

    await lab.cluster.submit([lab.job("trains"), lab.session("lab-ana", gpus=0)])

    await settled(lab, exp_2="queued", trains="running", lab_ana="starting")


async def test_session_with_a_command_is_bounded_as_a_job(lab):
    await lab.cluster.submit(array(lab, 2))
    await lab.cluster.submit([without(lab, "shell", kind="session", preemptible=False)])

    await settled(lab, exp_0="running", exp_1="running", shell="queued")
    await eventually_async(lambda: reasons(lab))
    assert await reasons(lab) == {"shell": (1, NEXT)}


async def test_suspended_job_gives_its_place_and_waits_for_one_when_resumed(lab):
    jobs = array(lab, 3, on_term=143)
    await lab.cluster.submit(jobs)
    await settled(lab, exp_0="running", exp_1="running", exp_2="queued")
    await asyncio.gather(lab.ready(jobs[0]), lab.ready(jobs[1]))

    await lab.cluster.suspend(jobs[0].id, by="ana")
    await settled(lab, exp_0="suspended", exp_1="running", exp_2="running")
    await lab.cluster.resume(jobs[0].id, by="ana")
    await settled(lab, exp_0="paused", exp_1="running", exp_2="running")
    await eventually_async(lambda: reasons(lab))
    assert await reasons(lab) == {"exp-0": (1, NEXT)}

    await lab.end(jobs[1], 0)
    await settled(lab, exp_0="running", exp_1="succeeded", exp_2="running")


async def test_bound_holds_after_a_restart(tmp_path):
    clock = Clock()
    async with one_core(tmp_path, clock, forget=False) as lab:
        jobs = array(lab, 4)
        await lab.cluster.submit(jobs)
        await settled(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")

    async with one_core(tmp_path, clock) as lab:
        await settled(lab, exp_0="running", exp_1="running", exp_2="queued", exp_3="queued")
        await lab.end(jobs[0], 0)
        await settled(lab, exp_0="succeeded", exp_1="running", exp_2="running", exp_3="queued")
        assert programs(lab) == 2
