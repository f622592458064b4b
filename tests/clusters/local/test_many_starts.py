"""Many simultaneous starts on this machine: each takes a while, and none blocks the event loop."""

from __future__ import annotations

import asyncio

import pytest

from labs import DEVICES, local_lab, plan, start

MANY = len(DEVICES)


@pytest.mark.parametrize(
    ("jobs", "workers"),
    [
        pytest.param(MANY, 1, id="workloads"),
        pytest.param(1, MANY, id="workers of one workload"),
    ],
)
async def test_event_loop_runs_other_tasks_between_two_of_many_job_starts(tmp_path, jobs, workers):
    async with local_lab(tmp_path) as lab:
        specs = [lab.job(f"exp-{n}", command=("true",), workers=workers) for n in range(jobs)]
        await lab.cluster.submit(specs)
        starts = [
            start(spec.id, n * workers + worker, worker=worker)
            for n, spec in enumerate(specs)
            for worker in range(workers)
        ]
        assert await lab.cluster.apply(plan(*starts)) == []
        begun = {0}

        def record_starts() -> None:
            """Record the state at each turn of the loop."""
            begun.add(len(list((tmp_path / "data/jobs").glob("*/*/attempt-1/worker-*"))))
            if MANY not in begun:
                asyncio.get_running_loop().call_soon(record_starts)

        record_starts()
        for spec in specs:
            await lab.until(spec.id, "succeeded")

    assert begun == set(range(MANY + 1))
