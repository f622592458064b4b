"""Actions on the pages, by a click or by keys alone, and their effects.

Adding workers is in `test_elastic_job_buttons`, releasing idle GPUs in `test_idle_gpu_buttons`;
stops, previews, submissions and other users' views in `test_pages`.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from hub_platform import HubPlatform
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TIMEOUT_MS = 90_000
SERVICE_PATH = "services/runai/"
COUNTING_PROGRAM = Path(__file__).parents[1] / "crashes/counting_job.py"
COUNTING_JOB = "vision/counter"
COUNTING_COMMAND = [sys.executable, str(COUNTING_PROGRAM), "1000000", "0.1"]
"""It counts to a million, a step in each tenth of a second."""


@pytest.fixture(scope="module")
def clients(platform: HubPlatform) -> Iterator[dict[str, Client]]:
    """Start a counting job of bob's; return the users' clients."""
    clients = {name: platform.client(name) for name in ("bob", "admin")}
    request = SubmitRequest(name="counter", command=COUNTING_COMMAND, gpus=1, grace_seconds=1)
    clients["bob"].submit(request)
    eventually(lambda: clients["bob"].workload(COUNTING_JOB).state == "running", within=60)
    yield clients
    if "audio" in {project.name for project in clients["admin"].projects()}:
        clients["admin"].delete_project("audio")  # remove it from the pages


@pytest.fixture
def bob_page(page_of: Callable[[str], Page], clients: dict[str, Client]) -> Page:
    return page_of("bob")


def open_page(page: Page, platform: HubPlatform, path: str = "") -> None:
    page.goto(f"{platform.url}/{SERVICE_PATH}{path}")
    expect(page.locator("#main")).to_be_visible()


def state(page: Page, workload: str) -> Locator:
    return page.locator(f"[id='w:{workload}'] .state")


def press(page: Page, name: str) -> None:
    """Press a button by keyboard."""
    page.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")


# -- own workloads --------------------------------------------------------------------------------


def test_listed_job_pauses_and_resumes_by_click_and_announces_the_change(bob_page, platform):
    open_page(bob_page, platform)
    bob_page.get_by_role("button", name="Suspend counter").click()
    expect(state(bob_page, COUNTING_JOB)).to_have_text("suspended", timeout=TIMEOUT_MS)
    status_region = bob_page.locator("#said")
    expect(status_region).to_have_text("vision/counter: suspended")
    expect(status_region).to_have_role("status")

    bob_page.get_by_role("button", name="Resume counter").click()
    expect(state(bob_page, COUNTING_JOB)).to_have_text("running", timeout=TIMEOUT_MS)
    expect(status_region).to_have_text("vision/counter: running")


def test_job_page_pauses_and_resumes_by_keys_and_its_output_continues(bob_page, platform):
    open_page(bob_page, platform, f"workloads/{COUNTING_JOB}")
    output = bob_page.get_by_role("log", name="Output")
    expect(output).to_contain_text("counted", timeout=TIMEOUT_MS)

    def latest_count() -> int:
        return int(re.findall(r"counted (\d+) of", output.text_content() or "")[-1])

    count_before = latest_count()
    eventually(lambda: latest_count() > count_before + 5)
    press(bob_page, "Suspend counter")
    state_badge = bob_page.locator("#what .state")
    expect(state_badge).to_have_text("suspended", timeout=TIMEOUT_MS)
    expect(bob_page.get_by_role("button", name="Resume counter")).to_be_focused()
    count_at_suspend = latest_count()
    bob_page.keyboard.press("Enter")
    expect(state_badge).to_have_text("running", timeout=TIMEOUT_MS)
    expect(output).to_contain_text("started again", timeout=TIMEOUT_MS)
    eventually(lambda: latest_count() > count_at_suspend + 5)

    chart = bob_page.locator("#life svg")
    expect(chart).to_have_attribute("aria-label", re.compile("suspended for"))
    expect(bob_page.locator("#life .history")).to_contain_text("bob")


# -- over time -----------------------------------------------------------------------------------


def test_usage_chart_of_a_new_platform_has_measured_points(bob_page, platform):
    def has_points() -> bool:  # a new platform may have no point yet
        open_page(bob_page, platform)
        expect(bob_page.get_by_text("The history begins at")).to_be_visible(timeout=TIMEOUT_MS)
        label = bob_page.locator(".plot").get_attribute("aria-label") or ""
        more_than_zero = r"[1-9]\d*\.\d+|0\.[0-9]*[1-9]"
        assert re.search(f"({more_than_zero}) GPUs allocated", label)
        assert "nothing measured" not in label
        return True

    eventually(has_points)


def test_chart_buttons_change_the_visible_range(bob_page, platform):
    open_page(bob_page, platform, "?range=1h")
    plot = bob_page.locator(".plot")
    expect(plot).to_have_attribute("aria-label", re.compile("GPUs allocated"), timeout=TIMEOUT_MS)
    for name in ("Zoom in", "Earlier", "Later", "Zoom out", "All"):
        before = plot.get_attribute("aria-label") or ""
        press(bob_page, name)
        expect(plot).not_to_have_attribute("aria-label", before, timeout=TIMEOUT_MS)


def test_range_links_select_the_range_of_the_chart(bob_page, platform):
    open_page(bob_page, platform)
    for name, heading in (("7d", "the last 7 days"), ("30d", "the last 30 days")):
        bob_page.get_by_role("link", name=name, exact=True).click()
        expect(bob_page.get_by_role("link", name=name, exact=True)).to_have_attribute(
            "aria-current", "true"
        )
        expect(bob_page.get_by_role("heading", name=heading)).to_be_visible()


def test_usage_page_downloads_gpu_hours_as_csv(bob_page, platform, tmp_path):
    open_page(bob_page, platform, "usage?range=1h")

    def has_hours() -> bool:  # usage is counted, and written, some time after it began
        with bob_page.expect_download() as downloading:
            bob_page.get_by_role("link", name="CSV").first.click()
        file = tmp_path / "project.csv"
        downloading.value.save_as(file)
        assert downloading.value.suggested_filename == "usage-project-1h.csv"
        with file.open() as lines:
            hours = {row["project"]: row["allocated_gpu_hours"] for row in csv.DictReader(lines)}
        return float(hours.get("vision", 0)) > 0

    eventually(has_hours, what="the table has hours of vision")


# -- projects ------------------------------------------------------------------------------------


def test_admin_of_a_project_can_change_its_members_but_not_its_quota(platform, clients, page_of):
    admin_page, patty_page = page_of("admin"), page_of("patty")
    open_page(admin_page, platform)
    admin_page.get_by_role("link", name="New project").click()
    for label, value in (("Name", "audio"), ("Quota", "1"), ("Admins", "patty")):
        admin_page.get_by_label(label, exact=True).fill(value)
    admin_page.keyboard.press("Enter")
    heading = admin_page.get_by_role("heading", name="Project audio")
    expect(heading).to_be_visible(timeout=TIMEOUT_MS)
    assert clients["admin"].project("audio").quota == 1

    open_page(patty_page, platform, "projects/audio")
    expect(patty_page.get_by_label("Quota", exact=True)).to_have_count(0)
    patty_page.get_by_label("Members").fill("patty, carol")
    patty_page.get_by_role("button", name="Save").click()
    expect(patty_page.locator(".facts")).to_contain_text("patty, carol", timeout=TIMEOUT_MS)
    expect(patty_page.locator(".outcome")).to_contain_text("JupyterHub knows no user carol yet")
    assert clients["admin"].project("audio").members == ["patty", "carol"]
