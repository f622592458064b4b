"""The example notebooks run from top to bottom, in a real kernel against a real service."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_notebook(name: str, folder: Path, *, epochs: str = "") -> list[str]:
    """Run a notebook beside copies of the examples; return what its cells printed or showed."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    notebook = nbformat.read(folder / name, as_version=4)
    for cell in notebook.cells:
        if epochs:
            cell.source = re.sub(r'"--epochs", "\d+"', f'"--epochs", "{epochs}"', cell.source)
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(folder)}},
        startup_timeout=200,
        iopub_timeout=60,
    )
    return ["".join(map(text, cell.get("outputs", []))) for cell in client.execute().cells]


def text(output: dict[str, Any]) -> str:
    """Return the text of an output, printed or displayed."""
    content: str = output["text"] if "text" in output else output["data"]["text/plain"]
    return content


@pytest.fixture(autouse=True)
def session(service, monkeypatch):
    """Set the environment of bob's session for the kernel."""
    monkeypatch.setenv("RUNAI_API_URL", service.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", service.tokens["bob"])
    monkeypatch.setenv("JUPYTERHUB_USER", "bob")
    monkeypatch.delenv("RUNAI_PROJECT", raising=False)


def test_first_steps_notebook_runs_and_deletes_its_jobs(folder):
    outputs = run_notebook("first_steps.ipynb", folder)

    all_output = "\n".join(outputs)
    assert "of 2.5 quota" in all_output  # of project vision
    assert "epoch   1 loss" in all_output
    assert all_output.count("Done: ") == 2
    assert outputs[-1] == "vision/first is deleted.\nvision/from-a-cell is deleted."


def test_bob_and_patty_notebook_jobs_all_have_the_same_result(folder):
    outputs = run_notebook("bob_and_patty.ipynb", folder, epochs="2")

    results = [line.partition(" ")[2] for line in outputs[-1].splitlines()]
    assert len(results) == 6  # jobs
    assert results[0].startswith("Done: ")
    assert set(results) == {results[0]}


def test_sweep_notebook_finishes_twenty_trials_under_quota(folder):
    outputs = run_notebook("sweep.ipynb", folder)

    assert outputs[-1] == "20 tried\n"
    assert outputs[-2].count("loss 0.0") == 3
    assert len({line.partition(":")[0] for line in outputs[-2].splitlines()}) == 3


@pytest.mark.torch
def test_gang_example_trains_equal_weights_on_every_worker(folder, service):
    shutil.copy(EXAMPLES / "gang.py", folder)
    client = Client(service.url, service.tokens["bob"])
    command = [sys.executable, "gang.py"]
    client.submit(
        SubmitRequest(name="gang", command=command, workdir=str(folder), gpus="0.5", workers=2)
    )
    eventually(lambda: client.workload("vision/gang").state in {"succeeded", "failed"}, within=100)

    lines = [line.text for line in client.logs("vision/gang")]
    results = sorted(line for line in lines if line.startswith("worker"))
    client.close()
    assert results == [f"worker {rank} of 2 found 1.000 -2.000 3.000" for rank in (0, 1)]
