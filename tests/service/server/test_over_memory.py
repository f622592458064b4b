"""End to end: a job that exceeds its memory is warned and ended, and its neighbour finishes.

Service, agent, supervisors and processes are real, on a simulated device. The watchdog's seconds
are the agent's polls, so its steps follow each other as fast as the machine measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys

from runai.hub_service.agent.agent import Agent
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.enforcement.memory_enforcer import MemoryEnforcer
from runai.hub_service.wire.workload_request import SubmitRequest

LIMIT_MIB = 100
USED_MIB = 800

# The job ignores interrupts and requests to end: the last step must work.
OVER_LIMIT_SCRIPT = f"""
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
ballast = b"x" * ({USED_MIB} << 20)
while True:
    signal.pause()
"""

NEIGHBOUR_SCRIPT = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("finished")
"""


def job(name: str, program: str, *arguments: str) -> SubmitRequest:
    return SubmitRequest(
        name=name,
        project="vision",
        command=[sys.executable, "-c", program, *arguments],
        gpu_memory_mib=LIMIT_MIB,
    )


@contextlib.asynccontextmanager
async def running_agent(served):
    polls = itertools.count()
    enforcer = MemoryEnforcer(clock=lambda: float(next(polls)))
    reporter = await served.client("agent")
    source = SimulatedDevices(5, node="lab")
    task = asyncio.create_task(
        Agent("lab", source, reporter, busy_s=0.05, idle_s=0.05, enforcer=enforcer).run()
    )
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_job_over_its_gpu_memory_is_warned_and_killed_and_its_neighbour_finishes(
    served, ana, nel, tmp_path, eventually_async
):
    finish_file = tmp_path / "finish"
    await ana.submit(job("greedy", OVER_LIMIT_SCRIPT))
    modest = job("modest", NEIGHBOUR_SCRIPT, str(finish_file)).model_copy(update={"project": "nlp"})
    await nel.submit(modest)

    async def state_of(client, workload: str) -> str:
        return str((await client.workload(workload)).state)

    async def has_ended() -> bool:
        detail = await ana.workload("vision/greedy")
        # The last action is reported only after it has worked.
        return detail.state == "failed" and any(e.text.endswith("killed") for e in detail.history)

    async def shares_the_device() -> bool:
        devices = [w.workers[0].devices for w in await ana.workloads()]
        return bool(devices and devices[0])

    await eventually_async(shares_the_device)
    async with running_agent(served):
        await eventually_async(has_ended)
    detail = await ana.workload("vision/greedy")
    warnings = [event.text for event in detail.history if event.kind == "warning"]

    # A last poll may find the job within its share again, because it has ended.
    assert [_step_of(text) for text in warnings][:4] == [
        "notice",
        "interrupted",
        "told to end",
        "killed",
    ]
    assert detail.notice == ("" if warnings[-1].startswith("is within its share") else warnings[-1])
    assert detail.exit_code == -signal.SIGKILL
    assert await state_of(nel, "nlp/modest") == "running"
    finish_file.touch()

    async def has_finished() -> bool:
        return await state_of(nel, "nlp/modest") == "succeeded"

    await eventually_async(has_finished)
    assert [e for e in (await nel.workload("nlp/modest")).history if e.kind == "warning"] == []


def _step_of(text: str) -> str:
    if text.endswith("in 3 s its largest process is interrupted"):
        return "notice"
    return text.rpartition(" is ")[2].partition(",")[0]
