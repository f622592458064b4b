"""A running elastic job grows and shrinks by a click, on the page and in the panel.

The training is real (PyTorch, from the examples); each test waits until it trains at the new size.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e import lab
from hub_platform import HubPlatform
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.torch,
    pytest.mark.timeout(600),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_digits.py"
SERVICE_PATH = "services/runai/"
JOB_NAME = "clicked-digits"
TRAINING_TIMEOUT_S = 240.0
"""Each worker imports PyTorch, on a busy machine."""


@pytest.fixture
def bob_client(platform: HubPlatform) -> Client:
    """Start bob's training on two GPUs; an added worker trains at once (`shared_hub`)."""
    client = platform.client("bob")
    client.submit(
        SubmitRequest(
            name=JOB_NAME,
            command=["python", str(EXAMPLE), "--epochs", "100000"],
            gpus=1,
            workers=2,
            min_workers=1,
            elastic=True,
            grace_seconds=5,
        )
    )
    wait_until_training_on(client, 2, workers=2)
    return client


def wait_until_training_on(client: Client, gpus: int, *, workers: int) -> None:
    """Wait until the job has this number of workers, all of them training."""

    def is_training() -> bool:
        view = client.workload(f"vision/{JOB_NAME}")
        assert view.state == "running", (view.state, view.reason)
        assert view.elastic is not None
        assert view.elastic.training == gpus
        assert view.elastic.joining == 0
        assert view.elastic.workers == workers
        return True

    eventually(is_training, within=TRAINING_TIMEOUT_S)


def expect_size(view: Locator, size: str) -> None:
    expect(view).to_contain_text(size, timeout=1000 * TRAINING_TIMEOUT_S)


def test_page_adds_a_worker_and_panel_of_a_busy_kernel_removes_it(platform, bob_client, page_of):
    """The request of the panel's other button is tested in `widgets/page.test.mjs`."""
    page: Page = page_of("bob")
    page.goto(f"{platform.url}/{SERVICE_PATH}")
    row = page.locator(f"[id='w:vision/{JOB_NAME}']")
    expect_size(row, "Training on 2 of 1 to 2 GPUs")
    expect(page.get_by_role("button", name=f"Remove a worker {JOB_NAME}")).to_have_count(0)

    page.get_by_role("button", name=f"Add a worker {JOB_NAME}").click()
    expect_size(row, "Training on 3 of 1 to 3 GPUs")
    wait_until_training_on(bob_client, 3, workers=3)

    page.goto(f"{platform.url}/{SERVICE_PATH}workloads/vision/{JOB_NAME}")
    history = page.locator("#life")
    expect(history).to_contain_text("bob set its workers to 1 to 3")
    expect(history.locator("svg title").filter(has_text=re.compile("3"))).not_to_have_count(0)
    remove_button = page.get_by_role("button", name=f"Remove a worker {JOB_NAME}")
    expect(remove_button).to_have_attribute("data-body", '{"workers": 2}')
    lab.save_picture(page, "page-elastic", whole=True)

    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    cells = [
        "%load_ext runai.widgets\nfrom runai.widgets import panel\npanel()",
        "import time\ntime.sleep(3600)  # the kernel hears nothing until this ends",
    ]
    lab.write_notebook(platform.data_dir / "users" / "bob" / "clicked.ipynb", cells)
    lab.open_notebook(page, platform.url, "bob", "clicked.ipynb")
    lab.run_all_cells(page)
    panel = page.locator(".jp-OutputArea .runai-panel")
    expect_size(panel, "3 of 1 to 3 GPUs")

    panel.get_by_role("button", name=f"Remove a worker {JOB_NAME}").click()
    expect_size(panel, "2 of 1 to 2 GPUs")
    wait_until_training_on(bob_client, 2, workers=2)
