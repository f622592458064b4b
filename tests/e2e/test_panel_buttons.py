"""The panel in a real JupyterLab: it goes on while a cell runs, and so do its buttons."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect

from e2e import lab
from e2e.running import Platform
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.timeout(300),
]

PICTURES = Path(os.environ["RUNAI_PICTURES"]) if "RUNAI_PICTURES" in os.environ else None
SECONDS = 30_000

CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel, submit",
    "job = submit(['sleep', '600'], gpus=1, name='exp1', grace_seconds=1)",
    "panel()",
    "import time\ntime.sleep(600)  # the kernel hears nothing until this ends",
]


@pytest.fixture
def busy_page(platform: Platform, page_of: Callable[[str], Page]) -> Page:
    """Give a page of bob's whose kernel is busy, below a panel; he has never seen the service."""
    page = page_of("bob")
    lab.take(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    home = platform.data_dir / "users" / "bob"
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.write(notebook, home / "busy.ipynb")
    lab.open_notebook(page, platform.url, "bob", "busy.ipynb")
    lab.run_all(page)
    return page


def expect_busy(page: Page) -> None:
    """Wait until the last cell runs; the status bar lags behind."""
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]", timeout=SECONDS)


def test_buttons_work_while_a_cell_runs(platform: Platform, busy_page: Page) -> None:
    panel = busy_page.locator(".runai-panel")
    state = panel.get_by_role("row").filter(has_text="exp1").locator(".runai-state")
    bob = platform.client("bob")

    expect(state).to_contain_text("running", timeout=SECONDS)
    expect_busy(busy_page)
    panel.get_by_role("button", name="Pause exp1").click()
    expect(state).to_contain_text("suspended", timeout=SECONDS)
    assert bob.workload("vision/exp1").state == "suspended"

    panel.get_by_role("button", name="Resume exp1").click()
    expect(state).to_contain_text("running", timeout=SECONDS)
    expect(panel.get_by_text("simulated GPUs").first).to_be_visible()
    lab.picture(busy_page, PICTURES, "panel")

    panel.get_by_role("button", name="Stop exp1").click()
    panel.get_by_role("button", name="Really stop exp1").click()
    eventually(lambda: [w.kind for w in bob.workloads()] == ["session"])
    expect(panel.get_by_text("exp1")).to_have_count(0, timeout=SECONDS)
    expect_busy(busy_page)
