"""Actions on an idle GPU, on the page and in the panel, each by a click.

The devices seem real and stay idle: a fake of the driver's library reports no process on them. So
a session is idle while its JupyterLab is open, as on a real GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from e2e import lab
from fake_driver import idle_devices
from hub_platform import HubPlatform
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import IdlePut, ProjectPut, WorkloadView
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.cc,
    pytest.mark.timeout(1200),
]

TIMEOUT_MS = 90_000
IDLE_TIMEOUT_S = 240
"""A session is shown as idle after a minute at the earliest."""
IDLE_RULES = ProjectPut(
    idle_session=IdlePut(badge_s=60, release_s=86400),
    idle_job=IdlePut(badge_s=60, stop_s=86400),
)
NOTEBOOK_CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel\npanel()",
    "import time\ntime.sleep(3600)  # the kernel hears nothing until this ends",
]


@pytest.fixture(scope="module")
def platform(
    start_platform: Callable[..., HubPlatform], tmp_path_factory: pytest.TempPathFactory
) -> HubPlatform:
    """Run a platform on three devices that no program uses."""
    folder = idle_devices(tmp_path_factory.mktemp("driver"))
    started = start_platform(simulated=None, shell={"LD_LIBRARY_PATH": str(folder)})
    started.client("admin").put_project("vision", IDLE_RULES)
    return started


def session_of(client: Client) -> WorkloadView:
    (session,) = (w for w in client.workloads() if w.kind == "session")
    return session


def wait_until_idle(client: Client, workload: str) -> WorkloadView:
    eventually(lambda: client.workload(workload).idle is not None, within=IDLE_TIMEOUT_S)
    return client.workload(workload)


def test_idle_gpus_are_retained_released_and_regained_by_clicks(platform, page_of):
    page: Page = page_of("bob")
    bob = platform.client("bob")
    for name, command in (("idle-job", ["sleep", "86400"]), ("done", ["true"])):
        bob.submit(SubmitRequest(name=name, command=command, gpus=1, grace_seconds=1))
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "idle.ipynb", NOTEBOOK_CELLS)
    lab.open_notebook(page, platform.url, "bob", "idle.ipynb")
    lab.run_all_cells(page)
    panel = page.locator(".jp-OutputArea .runai-panel")
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]", timeout=TIMEOUT_MS)

    panel.get_by_role("button", name="Delete done").click()
    expect(panel.get_by_role("row").filter(has_text="done")).to_have_count(0, timeout=TIMEOUT_MS)
    assert "vision/done" not in {workload.id for workload in bob.workloads()}

    service_page = page_of("bob")
    service_page.goto(f"{platform.url}/services/runai/")
    job, session = wait_until_idle(bob, "vision/idle-job"), wait_until_idle(bob, session_of(bob).id)
    assert not session.simulated
    for view, workload in ((panel, job), (service_page, session)):
        keep_button = view.get_by_role("button", name=f"Keep 30 more minutes {workload.name}")
        expect(keep_button).to_be_visible(timeout=TIMEOUT_MS)
        keep_button.click()
        eventually(partial(is_retained, bob, workload.id), within=60)

    panel.get_by_role("button", name=f"Give GPU back {session.name}").click()
    get_back_button = panel.get_by_role("button", name=f"Get GPU back {session.name}")
    expect(get_back_button).to_be_visible(timeout=TIMEOUT_MS)
    released = bob.workload(session.id)
    assert released.state == "running"
    assert released.allocated == 0

    service_page.get_by_role("button", name=f"Get GPU back {session.name}").click()
    expect(get_back_button).to_have_count(0, timeout=TIMEOUT_MS)
    eventually(lambda: bob.workload(session.id).allocated == 0.5)  # as chosen at the start
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]")


def is_retained(client: Client, workload: str) -> bool:
    idle = client.workload(workload).idle
    return idle is not None and idle.kept
