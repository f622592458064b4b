"""Actions on the pages, by a click or by keys alone, and their effects.

Adding workers is in `test_elastic_clicks`, releasing idle GPUs in `test_idle_clicks`; stops,
previews, submissions and other users' views in `test_pages`.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.running import Platform
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

SECONDS = 90_000
SERVICE = "services/runai/"
COUNTING = Path(__file__).with_name("counting.py")
COUNTING_JOB = "vision/acts-counts"
COUNTS = [sys.executable, str(COUNTING), "1000000", "0.1"]


@pytest.fixture(scope="module")
def clients(platform: Platform) -> Iterator[dict[str, Client]]:
    """Start a counting job of bob's; return the users' clients."""
    clients = {name: platform.client(name) for name in ("bob", "admin")}
    request = SubmitRequest(name="acts-counts", command=COUNTS, gpus=1, grace_seconds=1)
    clients["bob"].submit(request)
    eventually(lambda: clients["bob"].workload(COUNTING_JOB).state == "running", within=60)
    yield clients
    if "audio" in {project.name for project in clients["admin"].projects()}:
        clients["admin"].delete_project("audio")  # remove it from the pages


@pytest.fixture
def bob(page_of: Callable[[str], Page], clients: dict[str, Client]) -> Page:
    return page_of("bob")


def open_page(page: Page, platform: Platform, path: str = "") -> None:
    page.goto(f"{platform.url}/{SERVICE}{path}")
    expect(page.locator("#main")).to_be_visible()


def state(page: Page, workload: str) -> Locator:
    return page.locator(f"[id='w:{workload}'] .state")


def press(page: Page, name: str) -> None:
    """Press a button by keyboard."""
    page.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")


# -- one's workloads -----------------------------------------------------------------------------


def test_listed_job_pauses_and_resumes_by_click_and_announces_the_change(bob, platform):
    open_page(bob, platform)
    bob.get_by_role("button", name="Suspend acts-counts").click()
    expect(state(bob, COUNTING_JOB)).to_have_text("suspended", timeout=SECONDS)
    status_region = bob.locator("#said")
    expect(status_region).to_have_text("vision/acts-counts: suspended")
    expect(status_region).to_have_role("status")

    bob.get_by_role("button", name="Resume acts-counts").click()
    expect(state(bob, COUNTING_JOB)).to_have_text("running", timeout=SECONDS)
    expect(status_region).to_have_text("vision/acts-counts: running")


def test_job_page_pauses_and_resumes_by_keys_and_its_output_continues(bob, platform):
    open_page(bob, platform, f"workloads/{COUNTING_JOB}")
    output = bob.get_by_role("log", name="Output")
    expect(output).to_contain_text("counted", timeout=SECONDS)

    def latest() -> int:
        return int(re.findall(r"counted (\d+) of", output.text_content() or "")[-1])

    first = latest()
    eventually(lambda: latest() > first + 5)
    press(bob, "Suspend acts-counts")
    state_badge = bob.locator("#what .state")
    expect(state_badge).to_have_text("suspended", timeout=SECONDS)
    expect(bob.get_by_role("button", name="Resume acts-counts")).to_be_focused()
    stopped = latest()
    bob.keyboard.press("Enter")
    expect(state_badge).to_have_text("running", timeout=SECONDS)
    expect(output).to_contain_text("started again", timeout=SECONDS)
    eventually(lambda: latest() > stopped + 5)

    expect(bob.locator("#life svg")).to_have_attribute("aria-label", re.compile("suspended for"))
    expect(bob.locator("#life .history")).to_contain_text("bob")


# -- over time -----------------------------------------------------------------------------------


def test_usage_chart_of_a_new_platform_has_measured_points(bob, platform):
    def has_points() -> bool:  # a new platform may have no point yet
        open_page(bob, platform)
        expect(bob.get_by_text("The history begins at")).to_be_visible(timeout=SECONDS)
        label = bob.locator(".plot").get_attribute("aria-label") or ""
        assert re.search(r"[1-9]\d*\.\d+ GPUs allocated|0\.[0-9]*[1-9] GPUs allocated", label)
        assert "nothing measured" not in label
        return True

    eventually(has_points)


def test_chart_buttons_change_the_visible_range(bob, platform):
    open_page(bob, platform, "?range=1h")
    plot = bob.locator(".plot")
    expect(plot).to_have_attribute("aria-label", re.compile("GPUs allocated"), timeout=SECONDS)
    for name in ("Zoom in", "Earlier", "Later", "Zoom out", "All"):
        before = plot.get_attribute("aria-label") or ""
        press(bob, name)
        expect(plot).not_to_have_attribute("aria-label", before, timeout=SECONDS)


def test_range_links_select_the_range_of_the_chart(bob, platform):
    open_page(bob, platform)
    for name, words in (("7d", "the last 7 days"), ("30d", "the last 30 days")):
        bob.get_by_role("link", name=name, exact=True).click()
        expect(bob.get_by_role("link", name=name, exact=True)).to_have_attribute(
            "aria-current", "true"
        )
        expect(bob.get_by_role("heading", name=words)).to_be_visible()


def test_usage_page_downloads_gpu_hours_as_csv(bob, platform, tmp_path):
    open_page(bob, platform, "usage?range=1h")

    def has_hours() -> bool:  # usage is counted, and written, some time after it began
        with bob.expect_download() as downloading:
            bob.get_by_role("link", name="CSV").first.click()
        file = tmp_path / "project.csv"
        downloading.value.save_as(file)
        assert downloading.value.suggested_filename == "usage-project-1h.csv"
        with file.open() as lines:
            hours = {row["project"]: row["allocated_gpu_hours"] for row in csv.DictReader(lines)}
        return float(hours.get("vision", 0)) > 0

    eventually(has_hours, what="the table has hours of vision")


# -- projects ------------------------------------------------------------------------------------


def test_admin_of_a_project_can_change_its_members_but_not_its_quota(platform, clients, page_of):
    admin, patty = page_of("admin"), page_of("patty")
    open_page(admin, platform)
    admin.get_by_role("link", name="New project").click()
    for label, typed in (("Name", "audio"), ("Quota", "1"), ("Admins", "patty")):
        admin.get_by_label(label, exact=True).fill(typed)
    admin.keyboard.press("Enter")
    expect(admin.get_by_role("heading", name="Project audio")).to_be_visible(timeout=SECONDS)
    assert clients["admin"].project("audio").quota == 1

    open_page(patty, platform, "projects/audio")
    expect(patty.get_by_label("Quota", exact=True)).to_have_count(0)
    patty.get_by_label("Members").fill("patty, carol")
    patty.get_by_role("button", name="Save").click()
    expect(patty.locator(".facts")).to_contain_text("patty, carol", timeout=SECONDS)
    expect(patty.locator(".outcome")).to_contain_text("JupyterHub knows no user carol yet")
    assert clients["admin"].project("audio").members == ["patty", "carol"]
