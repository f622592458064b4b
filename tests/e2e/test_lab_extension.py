"""JupyterLab with the platform: status bar, side panel, a script that runs as a job."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from accessibility import problems
from e2e import lab
from hub_platform import HubPlatform
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TIMEOUT_MS = 90_000
WIDTHS = (250, 300, 460)
"""Pixels of the side bar: the narrowest, as it opens, and where cards become rows."""
PROGRAM = (
    "import sys, threading\nprint('begun', sys.argv[1:], flush=True)\nthreading.Event().wait()"
)


@pytest.fixture
def page(platform: HubPlatform, page_of: Callable[[str], Page]) -> Page:
    """Return bob's JupyterLab with half a GPU, and a script in his folder."""
    home = platform.data_dir / "users" / "bob"
    # A notebook of another module would open again, and its views have lost their kernel.
    shutil.rmtree(home / ".jupyter/lab/workspaces", ignore_errors=True)
    page = page_of("bob")
    if platform.client("bob").workloads():  # of the test before
        page.goto(f"{platform.url}/user/bob/lab")
    else:
        lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    (home / "train.py").write_text(PROGRAM)
    return page


def test_script_runs_as_a_job_by_two_clicks_and_its_panel_follows_it(
    platform: HubPlatform, page: Page
) -> None:
    bob = platform.client("bob")
    status = page.locator(".runai-lab-line")
    expect(status).to_contain_text("½ GPU · ", timeout=TIMEOUT_MS)

    page.get_by_role("listitem").filter(has_text="train.py").click(button="right")
    page.get_by_role("menuitem", name="Run as a GPU Job…").click()
    form = page.locator(".runai-lab-form")
    form.get_by_label("Arguments").fill("--name 'a b'")
    form.get_by_label("Name").first.fill("exp1")
    expect(form.get_by_role("status")).to_have_text(
        "vision/exp1 would be submitted and start at once."
    )
    form.get_by_label("Name").first.press("Enter")

    panel = page.locator(".runai-lab-side")
    expect(panel.get_by_role("heading", name="GPUs, as bob")).to_be_visible()
    row = panel.locator(".runai-row").filter(has_text="exp1")
    expect(row).to_contain_text("running", timeout=TIMEOUT_MS)
    row.get_by_role("button", name="Output exp1").click()
    expect(page.locator(".runai-lab-log")).to_contain_text("begun ['--name', 'a b']")
    lab.save_picture(page, "jupyterlab")

    row.get_by_role("button", name="Suspend exp1").click()
    expect(row).to_contain_text("suspended", timeout=TIMEOUT_MS)
    row.get_by_role("button", name="Resume exp1").click()
    expect(row).to_contain_text("running", timeout=TIMEOUT_MS)
    row.get_by_role("button", name="Stop exp1").click()
    row.get_by_role("button", name="Really stop exp1").click()
    eventually(lambda: [w.kind for w in bob.workloads()] == ["session"])
    expect(page.locator(".runai-lab-log")).to_contain_text("There is no workload vision/exp1")


@pytest.mark.axe
def test_side_panel_is_accessible_at_each_width_in_both_themes(
    platform: HubPlatform, page: Page
) -> None:
    found = {}
    for theme in ("Light", "Dark"):
        lab.set_theme(platform.data_dir / "users" / "bob", theme)
        page.goto(f"{platform.url}/user/bob/lab")
        is_light = str(theme == "Light").lower()
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", is_light)
        page.locator(".runai-lab-line").click()
        side = page.locator(".runai-lab-side")
        side.get_by_role("button", name="Details of").click()
        expect(side.locator(".runai-facts")).to_contain_text("Priority")
        for width in WIDTHS:
            side.evaluate("(side, width) => { side.style.width = `${width}px`; }", width)
            found[theme, width] = problems(page, ".runai-lab-side")
        lab.save_picture(page, f"variants/jupyterlab-{theme.lower()}")

    assert found == {key: [] for key in found}
