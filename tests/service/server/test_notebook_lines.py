"""A real kernel in a session: an out-of-memory error, and the line that the platform adds.

tests/limits/test_notebook.py tests the line's figures of allocated memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import nbclient
import nbformat
import pytest

from runai.hub_service.limits import with_hook
from runai.hub_service.wire.reports import AgentReport, Notice, ProcessSample
from runai.hub_service.wire.workload_request import SubmitRequest

MEMORY_ERROR_CELL = """
class OutOfMemoryError(RuntimeError):
    pass
raise OutOfMemoryError("CUDA out of memory.")
"""
SERVICE_AWAY_CELL = """
import os
os.environ |= {"RUNAI_API_URL": "http://127.0.0.1:9/", "RUNAI_DEBUG": ""}
"""
FAILING_CELLS = (
    MEMORY_ERROR_CELL,
    "raise KeyboardInterrupt",
    "1 / 0",
    SERVICE_AWAY_CELL + MEMORY_ERROR_CELL,
)


@pytest.fixture(params=["interrupt"])
async def agent_report(simulated, request):
    """Have the agent report kernels of 6 and 2 GiB, and a step against the first of them."""
    verb = {"interrupt": "interrupted", "terminate": "told to end"}[request.param]
    agent, ana = await simulated.client("agent"), await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp1", project="vision", command=["true"], gpus="0.5"))
    (node,) = await ana.nodes()
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
    text = f"uses 9.0 GiB of device memory, and its share is 8.0 GiB: python3 (7) is {verb}"
    notice = Notice(workload="vision/exp1", device="GPU-0", at=1.0, rung=request.param, text=text)
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


async def run_cells(url: str, sources: Sequence[str]) -> list[list]:
    """Run the cells in a kernel of ana's session; return each cell's outputs."""
    env = {
        **os.environ,
        "PYTHONPATH": with_hook(""),
        "RUNAI_DEBUG": "1",
        "RUNAI_GPU_MEMORY_LIMITS_MIB": "8192",
        "RUNAI_GPU_DEVICES_MIB": "16384",
        "RUNAI_API_URL": url,
        "RUNAI_WORKLOAD": "vision/exp1",
        "JUPYTERHUB_API_TOKEN": "ana-token",
    }
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", allow_errors=True, startup_timeout=200, iopub_timeout=60
    )
    await client.async_execute(env=env)
    return [cell.outputs for cell in cells]


def text_below_traceback(outputs) -> list[str]:
    """Return the text below the traceback, which comes first and is complete."""
    assert outputs[0].output_type == "error"
    return [output.text for output in outputs[1:]]


async def test_gpu_memory_line_follows_notebook_memory_errors_and_interrupts(
    simulated, agent_report
):
    memory_error, interrupted, other_error, without_service = await run_cells(
        simulated.url, FAILING_CELLS
    )

    assert memory_error[0].evalue == "CUDA out of memory."
    (line,) = text_below_traceback(memory_error)
    assert line == (
        "Your session's GPU share is 8.0 GiB of 16.0; 8.0 in use by kernels"
        " a.ipynb (6.0), b.ipynb (2.0).\n"
    )
    (line,) = text_below_traceback(interrupted)
    assert line.startswith("Your session uses 9.0 GiB of device memory")
    assert text_below_traceback(other_error) == [], "only the traceback"
    assert text_below_traceback(without_service) == [
        "Your session's GPU share is 8.0 GiB of 16.0.\n"
    ]


@pytest.mark.parametrize("agent_report", ["terminate"], indirect=True)
async def test_first_cell_of_a_new_kernel_says_why_an_earlier_kernel_was_ended(
    simulated, agent_report
):
    first, second = await run_cells(simulated.url, ("1 + 1", "2 + 2"))

    messages = [output.text for output in first if output.output_type == "stream"]
    notice_text = (
        "uses 9.0 GiB of device memory, and its share is 8.0 GiB: python3 (7) is told to end."
    )
    assert messages == [f"A kernel was ended before this one began: your session {notice_text}\n"]
    assert [output.output_type for output in second] == ["execute_result"]
