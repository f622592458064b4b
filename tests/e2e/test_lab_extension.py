"""JupyterLab with the platform: status bar, side panel, a script that runs as a job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from accessibility import problems
from e2e import lab
from hub_platform import HubPlatform
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TIMEOUT_MS = 90_000
WIDTHS = (250, 300, 460)
"""Pixels of the side bar: the narrowest, as it opens, and where cards become rows."""
PROGRAM = """
import os, sys, time
print("begun", sys.argv[1:], flush=True)
while not os.path.exists("may-end"):
    time.sleep(0.1)
os.remove("may-end")
"""


@pytest.fixture
def open_lab(platform: HubPlatform, page_of: Callable[[str], Page]) -> Callable[[str], Page]:
    """Return a function: a user's JupyterLab with half a GPU, and a script in the folder."""

    def open_lab_of(user: str) -> Page:
        # A notebook of another module would open again, and its views have lost their kernel.
        workspaces = home_of(platform, user) / ".jupyter/lab/workspaces"
        shutil.rmtree(workspaces, ignore_errors=True)
        page = page_of(user)
        client = platform.client(user)
        if client.workloads(user=user):  # of the test before
            page.goto(f"{platform.url}/user/{user}/lab")
        else:
            lab.start_session(page, platform.url, "½ GPU")
        lab.wait_for_lab(page)
        (home_of(platform, user) / "train.py").write_text(PROGRAM)
        return page

    return open_lab_of


@pytest.fixture
def page(open_lab: Callable[[str], Page]) -> Page:
    """Return bob's JupyterLab."""
    return open_lab("bob")


def home_of(platform: HubPlatform, user: str) -> Path:
    return platform.data_dir / "users" / user


def submit_by_two_clicks(page: Page, name: str, gpus: str, sentence: str) -> Locator:
    """Run the script as a job once the form says this sentence; return the job's row."""
    page.get_by_role("listitem").filter(has_text="train.py").click(button="right")
    page.get_by_role("menuitem", name="Run as a GPU Job…").click()
    form = page.locator(".runai-lab-form")
    form.get_by_label("Name").first.fill(name)
    form.get_by_label("GPUs").first.fill(gpus)
    expect(form.get_by_role("status")).to_contain_text(sentence)
    form.get_by_label("Name").first.press("Enter")
    return page.locator(".runai-lab-side .runai-row").filter(has_text=name)


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


def test_job_waits_for_a_colleagues_and_is_paused_and_resumed_in_both_their_windows(
    platform: HubPlatform, open_lab: Callable[[str], Page]
) -> None:
    bob, patty = open_lab("bob"), open_lab("patty")

    first = submit_by_two_clicks(patty, "first", "4", "start at once")
    expect(first).to_contain_text("running")
    bobs = submit_by_two_clicks(bob, "study", "4", "vision/study would be submitted and wait")
    expect(bobs).to_contain_text("queued")
    (home_of(platform, "patty") / "may-end").touch()
    expect(first).to_contain_text("succeeded")
    expect(bobs).to_contain_text("running")

    patty.get_by_role("tab", name="File Browser").click()
    second = submit_by_two_clicks(
        patty, "second", "2", "the jobs that make room for it have stopped"
    )
    expect(second).to_contain_text("running")
    expect(bobs).to_contain_text("paused")
    lab.set_theme(home_of(platform, "bob"), "Dark")
    bob.reload()
    lab.wait_for_lab(bob)
    bob.locator(".runai-lab-line").click()
    bobs.get_by_role("button", name="Output study").click()
    expect(bob.locator(".runai-lab-log")).to_contain_text("begun")
    lab.save_picture(bob, "jupyterlab-paused")
    (home_of(platform, "patty") / "may-end").touch()
    expect(bobs).to_contain_text("running")
    (home_of(platform, "bob") / "may-end").touch()
    expect(bobs).to_contain_text("succeeded")


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
        side.get_by_role("button", name="Details of lab-bob").click()
        expect(side.locator(".runai-facts")).to_contain_text("Priority")
        for width in WIDTHS:
            side.evaluate("(side, width) => { side.style.width = `${width}px`; }", width)
            found[theme, width] = problems(page, ".runai-lab-side")
        lab.save_picture(page, f"variants/jupyterlab-{theme.lower()}")

    assert found == {key: [] for key in found}
