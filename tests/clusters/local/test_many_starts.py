"""Many simultaneous starts on this machine: each takes a while, and none blocks the event loop."""

from __future__ import annotations

import asyncio

import pytest

from labs import DEVICES, local_lab, plan, start

WORKER_COUNT = len(DEVICES)


@pytest.mark.parametrize(
    ("jobs", "workers"),
    [
        pytest.param(WORKER_COUNT, 1, id="many jobs"),
        pytest.param(1, WORKER_COUNT, id="many workers of one job"),
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
        start_counts = {0}

        def record_starts() -> None:
            """Count the started workers at each turn of the loop."""
            start_counts.add(len(list((tmp_path / "data/jobs").glob("*/*/attempt-1/worker-*"))))
            if WORKER_COUNT not in start_counts:
                asyncio.get_running_loop().call_soon(record_starts)

        record_starts()
        for spec in specs:
            await lab.until(spec.id, "succeeded")

    # The loop has turned after each start.
    assert start_counts == set(range(WORKER_COUNT + 1))
