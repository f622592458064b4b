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
from e2e.running import Platform
from fake_driver import fake_driver
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import IdlePut, ProjectPut, SubmitRequest, WorkloadView
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.cc,
    pytest.mark.timeout(1200),
]

SECONDS = 90_000
IDLE_S = 240
"""A session is shown as idle after a minute at the earliest."""
RULES = ProjectPut(
    idle_session=IdlePut(badge_s=60, release_s=86400),
    idle_job=IdlePut(badge_s=60, stop_s=86400),
)
CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel\npanel()",
    "import time\ntime.sleep(3600)  # the kernel hears nothing until this ends",
]


@pytest.fixture(scope="module")
def platform(
    start_platform: Callable[..., Platform], tmp_path_factory: pytest.TempPathFactory
) -> Platform:
    """Run a platform on three devices that no program uses."""
    folder = fake_driver(tmp_path_factory.mktemp("driver"))
    started = start_platform(simulated=None, environment={"LD_LIBRARY_PATH": str(folder)})
    started.client("admin").put_project("vision", RULES)
    return started


def session_of(client: Client) -> WorkloadView:
    (found,) = (each for each in client.workloads() if each.kind == "session")
    return found


def until_idle(client: Client, workload: str) -> WorkloadView:
    eventually(lambda: client.workload(workload).idle is not None, within=IDLE_S)
    return client.workload(workload)


def test_idle_gpus_are_retained_released_and_regained_by_clicks(platform, page_of):
    page: Page = page_of("bob")
    bob = platform.client("bob")
    for name, command in (("idles", ["sleep", "86400"]), ("has-ended", ["true"])):
        bob.submit(SubmitRequest(name=name, command=command, gpus=1, grace_seconds=1))
    lab.take(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "idle.ipynb", CELLS)
    lab.open_notebook(page, platform.url, "bob", "idle.ipynb")
    lab.run_all(page)
    panel = page.locator(".runai-panel")
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]", timeout=SECONDS)

    panel.get_by_role("button", name="Delete has-ended").click()
    expect(panel.get_by_role("row").filter(has_text="has-ended")).to_have_count(0, timeout=SECONDS)
    assert "vision/has-ended" not in {each.id for each in bob.workloads()}

    service_page = page_of("bob")
    service_page.goto(f"{platform.url}/services/runai/")
    job, session = until_idle(bob, "vision/idles"), until_idle(bob, session_of(bob).id)
    assert not session.simulated
    for place, each in ((panel, job), (service_page, session)):
        keep = place.get_by_role("button", name=f"Keep 30 more minutes {each.name}")
        expect(keep).to_be_visible(timeout=SECONDS)
        keep.click()
        eventually(partial(is_retained, bob, each.id), within=60)

    panel.get_by_role("button", name=f"Give GPU back {session.name}").click()
    get = panel.get_by_role("button", name=f"Get GPU back {session.name}")
    expect(get).to_be_visible(timeout=SECONDS)
    released = bob.workload(session.id)
    assert (released.state, released.allocated) == ("running", 0)

    service_page.get_by_role("button", name=f"Get GPU back {session.name}").click()
    expect(get).to_have_count(0, timeout=SECONDS)
    eventually(lambda: bob.workload(session.id).allocated == 0.5)
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]")


def is_retained(client: Client, workload: str) -> bool:
    idle = client.workload(workload).idle
    return idle is not None and idle.kept
