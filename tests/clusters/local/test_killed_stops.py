"""Stops of the local cluster: whether the job ended by itself, or was killed after its grace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from labs import LocalLab, plan, stop
from runai.hub_service.model.records import WorkloadSpec
from waiting import eventually_async

MAX_RUNTIME_S = 3600
KILLED_TEXT = "killed after its grace of 1 s: its save may be cut; `--grace` gives more"
MARK_READY = 'touch "$RUNAI_CHECKPOINT_DIR/../ready-${RANK:-0}"'
SLOW_JOB = f"trap '' TERM; {MARK_READY}; while :; do sleep 0.05; done"
QUICK_JOB = f"trap 'exit 143' TERM; {MARK_READY}; while :; do sleep 0.05; done"
QUICK_SHELL_OF_SLOW_JOB = f"trap 'exit 143' TERM; sh -c \"$SLOW\" & {MARK_READY}; wait"
"""A main process that ends at once, and leaves the program that saves."""


async def pause(lab: LocalLab, spec: WorkloadSpec) -> str:
    await lab.cluster.apply(plan(*(stop(spec.id, index) for index in range(spec.workers))))
    return "paused"


async def suspend(lab: LocalLab, spec: WorkloadSpec) -> str:
    await lab.cluster.suspend(spec.id, by="ana")
    return "suspended"


async def time_out(lab: LocalLab, _spec: WorkloadSpec) -> str:
    await lab.pass_time(MAX_RUNTIME_S + 1)
    return "timed_out"


async def start_job(lab: LocalLab, program: str, **fields: Any) -> WorkloadSpec:
    """Start a job with a grace of one second, and return it when its traps are set."""
    spec = lab.job(command=("sh", "-c", program), grace_seconds=1, env={"SLOW": SLOW_JOB}, **fields)
    await lab.started(spec)
    job_dir = Path((await lab.cluster.workload(spec.id)).checkpoint_dir).parent
    for index in range(spec.workers):
        await eventually_async((job_dir / f"ready-{index}").exists)
    return spec


async def exit_texts(lab: LocalLab, spec: WorkloadSpec) -> list[str]:
    return sorted(e.text for e in await lab.cluster.history(spec.id) if e.kind == "exited")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (SLOW_JOB, f"was {KILLED_TEXT}"),
        (QUICK_SHELL_OF_SLOW_JOB, f"ended with exit code 143; the rest was {KILLED_TEXT}"),
        (QUICK_JOB, "ended with exit code 143"),
    ],
    ids=["program saves too long", "shell ends before its program", "program ends by itself"],
)
@pytest.mark.parametrize("end_job", [pause, suspend, time_out])
async def test_job_history_says_whether_a_stopped_job_was_killed(
    lab, program: str, expected: str, end_job: Callable[[LocalLab, WorkloadSpec], Awaitable[str]]
):
    spec = await start_job(lab, program, max_runtime=MAX_RUNTIME_S)

    record = await lab.until(spec.id, await end_job(lab, spec))

    assert await exit_texts(lab, spec) == [expected]
    assert record.killed == (KILLED_TEXT in expected)


async def test_job_history_of_a_stopped_gang_names_the_worker_that_was_killed(lab):
    program = f'if [ "$RANK" = 1 ]; then {SLOW_JOB}; fi; {QUICK_JOB}'
    spec = await start_job(lab, program, workers=2)

    record = await lab.until(spec.id, await pause(lab, spec))

    assert await exit_texts(lab, spec) == [
        "worker 0 ended with exit code 143",
        f"worker 1 was {KILLED_TEXT}",
    ]
    assert record.killed


async def test_job_history_of_an_elastic_shrink_names_the_worker_that_was_killed(lab):
    spec = await start_job(lab, SLOW_JOB, workers=2, min_workers=1, elastic=True)
    await lab.cluster.apply(plan(stop(spec.id, 1)))

    record = await lab.until(spec.id, "running")
    while not (texts := await exit_texts(lab, spec)):
        record = await lab.cluster.wait(spec.id, record)

    assert texts == [f"worker 1 was {KILLED_TEXT}"]
    assert (await lab.cluster.workload(spec.id)).state == "running"
    assert record.killed


async def test_finished_job_with_killed_leftover_processes_is_not_recorded_as_killed(lab):
    spec = lab.job(command=("sh", "-c", 'sh -c "trap : TERM; sleep 9; sleep 9" & exit 0'))
    await lab.started(spec)

    record = await lab.until(spec.id, "succeeded")

    assert await exit_texts(lab, spec) == ["ended with exit code 0"]
    assert not record.killed
