"""The example of allocation against utilization, run as a reader would run it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.hub, pytest.mark.tensorflow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_example_of_allow_growth_lowers_allocated_memory_but_not_utilization(
    platform, tmp_path, monkeypatch
):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", platform.login_token("bob"))
    monkeypatch.setenv("RUNAI_API_URL", f"{platform.url}/services/runai/")
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder)
    notebook = nbformat.read(folder / "allocation_and_utilization.ipynb", as_version=4)

    runner = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(folder)}},
        timeout=300,
        startup_timeout=200,
        iopub_timeout=60,
    )
    cells = runner.execute().cells

    printed = "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", []))
    reports = re.findall(r"(\w+) allow_growth: (\d+)% .* (\d+)% of a GPU utilized", printed)
    [(first, *percents_without), (second, *percents_with)] = reports
    allocated_without, utilized_without = map(int, percents_without)
    allocated_with, utilized_with = map(int, percents_with)
    assert (first, second) == ("without", "with")
    assert allocated_without > allocated_with
    assert min(utilized_without, utilized_with) > 0
    assert "(simulated GPU)" in (folder / "allocation_and_utilization.svg").read_text()
