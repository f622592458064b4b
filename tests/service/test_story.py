"""What a user does, over real HTTP, with real processes: submit, watch, wait, pause, read logs."""

from __future__ import annotations

import sys

from runai.hub_service.api.schemas import SubmitRequest, WorkloadDetail
from runai.hub_service.client import AsyncClient


async def until(client: AsyncClient, workload: str, *states: str) -> WorkloadDetail:
    """Wait by long polls, as every client does."""
    seen = await client.workload(workload)
    while seen.state not in states:
        seen = await client.wait(workload, seen.version, timeout_s=30)
    return seen


def python(program: str) -> list[str]:
    return [sys.executable, "-u", "-c", program]


async def test_a_job_runs_and_succeeds(ana):
    reply = await ana.submit(SubmitRequest(name="exp1", gpus=1, command=python("print('hello')")))

    assert [w.id for w in reply.workloads] == ["vision/exp1"]
    done = await until(ana, "vision/exp1", "succeeded", "failed")
    assert (done.state, done.exit_code, done.attempts) == ("succeeded", 0, 1)
