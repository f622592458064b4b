"""A real kernel in a session: an out-of-memory error, and the line that the platform adds."""

from __future__ import annotations

import os

import nbclient
import nbformat
import pytest

from runai.hub_service.api.reports import AgentReport, Notice, ProcessSample
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.limits.path import with_hook

FAILS = """
class OutOfMemoryError(RuntimeError):
    pass
raise OutOfMemoryError("CUDA out of memory.")
"""


@pytest.fixture
async def in_a_session(simulated):
    """Return a function that runs a cell in a kernel of ana's session and gives its outputs."""
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp1", project="vision", command=["true"], gpus="0.5"))
    env = {
        **os.environ,
        "PYTHONPATH": with_hook(""),
        "RUNAI_DEBUG": "1",
        "RUNAI_GPU_MEMORY_LIMITS_MIB": "8192",
        "RUNAI_GPU_DEVICES_MIB": "16384",
        "RUNAI_API_URL": simulated.url,
        "RUNAI_WORKLOAD": "vision/exp1",
        "JUPYTERHUB_API_TOKEN": "ana-token",
    }

    async def run(source: str, **more: str):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        client = nbclient.NotebookClient(
            notebook,
            kernel_name="python3",
            allow_errors=True,
            startup_timeout=200,
            iopub_timeout=60,
        )
        await client.async_execute(env=env | more)
        return notebook.cells[0].outputs

    return run


@pytest.fixture
async def reported(simulated):
    """Have the agent report two kernels, and that one was interrupted."""
    agent = await simulated.client("agent")
    (node,) = await (await simulated.client("ana")).nodes()
    device = node.devices[0].uuid
    processes = tuple(
        ProcessSample(
            device=device,
            pid=pid,
            workload="vision/exp1",
            worker="vision/exp1-0",
            account="ana",
            name="python3",
            notebook=notebook,
            utilization=0.0,
            memory_mib=mib,
        )
        for pid, notebook, mib in ((7, "a.ipynb", 6144), (8, "b.ipynb", 2048))
    )
    text = "uses 9.0 GiB of device memory, and its share is 8.0 GiB: python3 (7) is interrupted"
    notice = Notice(workload="vision/exp1", device="GPU-0", at=1.0, rung="interrupt", text=text)
    await agent.report(
        AgentReport(
            node="lab",
            at=1.0,
            interval=1.0,
            devices=[],
            samples=[],
            processes=processes,
            notices=(notice,),
        )
    )


def below(outputs) -> list[str]:
    """Return what stands below the traceback, which comes first and whole."""
    assert outputs[0].output_type == "error"
    return [output.text for output in outputs[1:]]


async def test_the_line_stands_below_the_traceback(in_a_session, reported):
    outputs = await in_a_session(FAILS)

    assert outputs[0].evalue == "CUDA out of memory."
    (line,) = below(outputs)
    assert line == (
        "Your session's GPU share is 8.0 GiB of 16.0; 8.0 in use by kernels"
        " a.ipynb (6.0), b.ipynb (2.0).\n"
    )


async def test_a_cell_that_the_platform_interrupted_says_why(in_a_session, reported):
    outputs = await in_a_session("raise KeyboardInterrupt")

    (line,) = below(outputs)
    assert line.startswith("Your session uses 9.0 GiB of device memory")


async def test_without_the_service_it_says_what_it_knows(in_a_session):
    outputs = await in_a_session(FAILS, RUNAI_API_URL="http://127.0.0.1:9/", RUNAI_DEBUG="")

    assert below(outputs) == ["Your session's GPU share is 8.0 GiB of 16.0.\n"]


async def test_any_other_error_is_left_alone(in_a_session, reported):
    assert below(await in_a_session("1 / 0")) == []
