"""Child processes of a kernel share nothing with it: each reads the answers to its own requests."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from overviews import workload
from runai.hub_service.client import Client
from runai.widgets import connect, submit
from runai.widgets.gpu_cell import CellMeter
from runai.widgets.jobs import Job

JOB_COUNT = 8
REPEAT_COUNT = 6

QUERIES_MODULE = f"""
import asyncio
from runai.hub_service.client import AsyncClient, Client
from runai.widgets import Job, submit

NAMES = [f"fk{{n}}" for n in range({JOB_COUNT})]
REPEATS = NAMES * {REPEAT_COUNT}

def by_job(name):
    return Job(f"vision/{{name}}").detail.name

def by_client(name):
    return CLIENT.workload(f"vision/{{name}}").name

def by_submission(name):
    return submit("hello.py", name=f"from-{{name}}").name.removeprefix("from-")

async def _all():
    async with AsyncClient.discover() as client:
        return [(await client.workload(f"vision/{{name}}")).name for name in NAMES]

def by_event_loop(_name):
    return "".join(asyncio.run(_all()))

def by_object(job):
    return job.detail.name

CLIENT = Client.discover()
"""
"""A module beside the notebook: a started process imports it, a forked one has it."""

POOL_CELLS = {
    "prepare": (
        (
            "import os; from multiprocessing import get_context; from threading import Thread\n"
            "import queries; from queries import *; from runai.widgets import panel\n"
            "jobs = [submit('endless.py', name=name, grace_seconds=1) for name in NAMES]\n"
            "view = panel(); CLIENT.whoami()\n"
            "def wrong(method, query, names, expected):\n"
            "    with get_context(method).Pool(4) as pool:\n"
            "        got = pool.map(query, names, chunksize=1)\n"
            "    mistakes = sum(a != b for a, b in zip(got, expected, strict=True))\n"
            "    print(mistakes, 'of', len(got), 'wrong')"
        ),
        "",
    ),
    **{
        f"{query} by {method}": (f"wrong('{method}', {query}, REPEATS, REPEATS)", "0 of 48 wrong\n")
        for query, method in (
            ("by_job", "fork"),
            ("by_client", "fork"),
            ("by_job", "spawn"),
            ("by_job", "forkserver"),
        )
    },
    "submissions in a pool": ("wrong('fork', by_submission, NAMES, NAMES)", "0 of 8 wrong\n"),
    "event loops in a pool": (
        "wrong('fork', by_event_loop, NAMES, [''.join(NAMES)] * 8)",
        "0 of 8 wrong\n",
    ),
    "jobs handed to a pool": ("wrong('fork', by_object, jobs, NAMES)", "0 of 8 wrong\n"),
    "threads of the kernel": (
        (
            "got = {}\n"
            "def note(name): got[name] = by_job(name)\n"
            "threads = [Thread(target=note, args=(name,)) for name in NAMES]\n"
            "[t.start() for t in threads]; [t.join() for t in threads]\n"
            "print(all(a == b for a, b in got.items()), len(got))"
        ),
        "True 8\n",
    ),
    "panel in a fork": (
        (
            "end, start = os.pipe()\n"
            "if not (child := os.fork()):\n"
            "    other = panel()\n"
            "    state = other._repr_mimebundle_()[0], repr(view) != '', other.comm\n"
            "    view.close()\n"
            "    os.write(start, repr((sorted(state[0]), *state[1:])).encode()); os._exit(0)\n"
            "os.waitpid(child, 0); print(os.read(end, 999).decode())"
        ),
        "(['text/plain'], True, None)\n",
    ),
    "view of the kernel": (
        "print(view.comm is not None, len(view._link.live._listeners))",
        "True 1\n",
    ),
}


DATA_LOADER_CELLS = {
    "prepare": POOL_CELLS["prepare"],
    "data loader": (
        (
            "from torch.utils.data import DataLoader\n"
            "class Answers:\n"
            "    def __len__(self): return len(NAMES)\n"
            "    def __getitem__(self, index):\n"
            "        name = NAMES[index]\n"
            "        return [by_job(name), by_client(name), by_object(jobs[index]),\n"
            "                by_submission(name)]\n"
            "batches = DataLoader(Answers(), batch_size=2, num_workers=2, collate_fn=list)\n"
            "print([row for batch in batches for row in batch] == [[name] * 4 for name in NAMES])"
        ),
        "True\n",
    ),
    "queries of the kernel": (
        (
            "print([by_job(name) for name in REPEATS] == REPEATS, CLIENT.whoami().name,\n"
            "      by_submission('one'), view.comm is not None, len(view._link.live._listeners))"
        ),
        "True bob one True 1\n",
    ),
}
"""The loading processes of PyTorch are forks of the kernel, which go on while it trains."""


@pytest.fixture
def run_cells(
    service, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, tuple[str, str]]], dict[str, str]]:
    """Return a function that runs cells in one kernel of bob's, and returns what each printed."""
    monkeypatch.setenv("RUNAI_API_URL", service.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", service.tokens["bob"])
    monkeypatch.setenv("JUPYTERHUB_USER", "bob")
    monkeypatch.delenv("RUNAI_PROJECT", raising=False)
    (folder / "queries.py").write_text(QUERIES_MODULE)

    def run_in_kernel(cells: dict[str, tuple[str, str]]) -> dict[str, str]:
        sources = [nbformat.v4.new_code_cell(source) for source, _ in cells.values()]
        client = NotebookClient(
            nbformat.v4.new_notebook(cells=sources),
            resources={"metadata": {"path": str(folder)}},
            startup_timeout=200,
            iopub_timeout=60,
        )
        return dict(zip(cells, map(printed, client.execute().cells), strict=True))

    return run_in_kernel


def printed(cell: Any) -> str:
    """Return all output of a cell; nothing but text of the kernel itself is expected."""
    return "".join(output.get("text", repr(output)) for output in cell.outputs)


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(POOL_CELLS, id="process pools"),
        pytest.param(DATA_LOADER_CELLS, id="PyTorch data loader", marks=pytest.mark.torch),
    ],
)
def test_child_processes_of_a_kernel_get_the_answers_to_their_own_requests(run_cells, cells):
    assert run_cells(cells) == {name: expected for name, (_, expected) in cells.items()}


def run_in_fork(function) -> object:
    """Return what a forked child of this process gets."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(function()))
    child.start()
    child.join(60)
    child.kill()  # one that hangs would be waited for at the end
    assert child.exitcode == 0
    return answers.get()


def test_lock_acquired_before_a_fork_does_not_block_the_child(folder, service):
    kernel_link = connect(service.url, service.tokens["bob"])
    with kernel_link.live._lock:
        assert run_in_fork(lambda: callable(kernel_link.live.listen(lambda _news: None)))
    kernel_link.close()


def test_forked_child_process_closes_only_its_own_connections(service):
    with Client(service.url, service.tokens["bob"]) as client:
        assert client.whoami().name == "bob"

        def close() -> str:
            name = client.whoami().name
            client.close()
            return name

        assert run_in_fork(close) == "bob"
        assert client.whoami().name == "bob"


def test_gpu_meter_of_a_cell_reports_not_measured_in_a_child_process():
    def read():
        return workload("lab", allocated=0.5, utilized=0.5)

    with CellMeter(read, every_s=3600) as meter:

        def leave_the_cell() -> str:
            meter.__exit__(None, None, None)
            return meter.report()

        end_event: Any = meter._ended
        with end_event._cond:  # the meter's thread may hold it at any fork
            report = run_in_fork(leave_the_cell)

    assert "not measured: this is a child process" in str(report)
    assert "busy" in meter.report()


def test_cell_in_a_child_process_is_measured_separately(notebook, monkeypatch):
    bob = notebook("bob")
    job = bob("%runai_submit endless.py --gpus 0.5 --name exp1 --grace 1").value
    monkeypatch.setenv("RUNAI_WORKLOAD", job.id)

    with CellMeter(lambda: job.detail, every_s=0.001) as meter:
        outputs_in_forks = [run_in_fork(lambda: bob("%%gpu\nanswer = 6 * 7").out) for _ in range(3)]

    reports = [*outputs_in_forks, meter.report()]
    assert all("busy" in str(report) for report in reports)


def test_pickled_job_holds_no_token(folder, service):
    kernel_link = connect(service.url, service.tokens["bob"])
    job = submit("hello.py", name="exp1")

    pickled = pickle.dumps(job)

    assert service.tokens["bob"].encode() not in pickled
    loaded = pickle.loads(pickled)
    assert isinstance(loaded, Job)
    assert (loaded.id, loaded.detail.name) == ("vision/exp1", "exp1")
    kernel_link.close()
