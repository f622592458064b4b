"""The pages in a real Chromium: two users with different views and permissions, and an admin."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from accessibility import problems
from e2e import lab
from e2e.lab import PICTURES
from hub_platform import HubPlatform
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TIMEOUT_MS = 90_000
SERVICE_PATH = "services/runai/"
BOB_JOB_COUNT, PATTY_JOB_COUNT = 5, 2
"""Bob's jobs use all five GPUs until patty's jobs reclaim two, within her quota of 2.5."""
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CONFIRMATION_NEVER_EXPIRES = """{
    const later = window.setTimeout;  // a question is withdrawn after ten seconds
    window.setTimeout = (what, ms, ...more) => (ms === 10000 ? 0 : later(what, ms, ...more));
}"""
PRINTING_PROGRAM = """
import time
print('hello from here', flush=True)
print('41 %\\r42 %', end='', flush=True)
while True:  # a fifth of a processor, so that there is something to see
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
    time.sleep(0.08)
"""


@pytest.fixture(scope="module")
def clients(platform: HubPlatform) -> Iterator[dict[str, Client]]:
    """Run bob's jobs over quota and let patty reclaim GPUs: two of his jobs are paused."""
    clients = {name: platform.client(name) for name in ("bob", "patty", "admin")}
    command = [sys.executable, "-c", PRINTING_PROGRAM]
    for number in range(1, BOB_JOB_COUNT + 1):
        request = SubmitRequest(name=f"bob-{number}", command=command, gpus=1, grace_seconds=1)
        clients["bob"].submit(request)
    # Patty submits once every job has written a line: one stopped before has no log to show.
    # Polls use up a user's calls; the admin asks, so that no page of Bob's is refused (429).
    bob_jobs = [f"vision/bob-{number}" for number in range(1, BOB_JOB_COUNT + 1)]
    eventually(lambda: all(log_lines(clients["admin"], job) for job in bob_jobs))
    for number in range(1, PATTY_JOB_COUNT + 1):
        clients["patty"].submit(SubmitRequest(name=f"pat-{number}", command=command, gpus=1))
    eventually(lambda: states(clients["patty"]).count("running") == PATTY_JOB_COUNT)
    eventually(lambda: states(clients["bob"]).count("paused") == PATTY_JOB_COUNT)
    yield clients
    for client in (clients["bob"], clients["patty"]):
        for view in client.workloads():
            client.delete(view.id)


def states(client: Client) -> list[str]:
    return [view.state for view in client.workloads()]


def log_lines(client: Client, job: str) -> list[str]:
    return [line.text for line in client.logs(job)]


def paused_job(client: Client) -> str:
    return next(view.name for view in client.workloads() if view.state == "paused")


def open_page(page: Page, platform: HubPlatform, path: str = "") -> None:
    page.goto(f"{platform.url}/{SERVICE_PATH}{path}")
    expect(page.locator("#main")).to_be_visible()


def zoom_by_dragging(page: Page) -> None:
    """Zoom into the chart's beginning by dragging, then zoom out again."""
    plot, overlay = page.locator(".plot"), page.locator(".uplot .u-over")
    expect(overlay).to_be_visible(timeout=TIMEOUT_MS)
    range_before = plot.get_attribute("aria-label") or ""
    overlay.scroll_into_view_if_needed()  # the mouse reaches only visible parts
    box = overlay.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 20, steps=4)
    page.mouse.up()
    expect(plot).not_to_have_attribute("aria-label", range_before, timeout=TIMEOUT_MS)
    zoomed_range = plot.get_attribute("aria-label") or ""
    page.get_by_role("button", name="All").click()
    expect(plot).not_to_have_attribute("aria-label", zoomed_range, timeout=TIMEOUT_MS)


def row(page: Page, workload: str) -> Locator:
    return page.locator(f"[id='w:{workload}']")


def test_hub_page_lists_own_workloads_and_hides_names_of_other_projects(platform, clients, page_of):
    bob, patty = page_of("bob"), page_of("patty")
    open_page(bob, platform)
    open_page(patty, platform)

    expect(bob.locator("#workloads tr")).to_have_count(BOB_JOB_COUNT)
    expect(patty.locator("#workloads tr")).to_have_count(PATTY_JOB_COUNT)
    expect(patty.locator(".devices")).to_contain_text("another project 1")
    expect(patty.locator("body")).not_to_contain_text("bob-1")
    if PICTURES:
        eventually(
            lambda: (
                sum(p.allocated is not None for p in clients["admin"].usage(step_s=10).points) > 5
            ),
            within=180,
            what="a minute of history, which a chart can show",
        )
        open_page(bob, platform, "?range=1h")
        expect(bob.locator("#notifications")).to_be_visible(timeout=TIMEOUT_MS)
        zoom_by_dragging(bob)
        lab.save_picture(bob, "page-gpus", whole=True)


def test_workload_page_loads_each_static_file_once_and_in_parallel(platform, clients, page_of):
    page, requested, initiators = page_of("bob"), [], {}
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def record_request(event: dict[str, Any]) -> None:
        path = urlsplit(event["request"]["url"]).path
        if path.startswith(f"/{SERVICE_PATH}static/"):
            requested.append(path.rpartition("/")[2])
            initiators[requested[-1]] = event["initiator"]["type"]

    session.on("Network.requestWillBeSent", record_request)
    open_page(page, platform, "workloads/vision/bob-1")
    expect(page.locator(".uplot canvas")).to_be_visible(timeout=TIMEOUT_MS)
    expect(page.locator("#logs")).to_contain_text("hello from here", timeout=TIMEOUT_MS)

    scripts = {"call.js", "chart.js", "live.js", "logs.js", "uplot.js"}
    assert sorted(requested) == sorted({*requested})
    assert {name: initiators.get(name) for name in scripts} == dict.fromkeys(scripts, "parser")


@pytest.mark.tier("test")
def test_job_state_on_the_hub_page_follows_a_suspend_and_a_resume(platform, clients, page_of):
    page = page_of("patty")
    open_page(page, platform)
    state = row(page, "nlp/pat-2").locator(".state")
    expect(state).to_have_text("running")

    clients["patty"].suspend("nlp/pat-2")

    expect(state).to_have_text("suspended", timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Resume pat-2").click()
    expect(state).to_have_text("running", timeout=TIMEOUT_MS)


def test_hub_page_without_a_connection_has_the_time_of_its_last_update(
    platform, clients, page_of, browser
):
    # A separate page: Chromium logs a lost connection as an error to its console.
    context = browser.new_context()
    context.add_cookies(page_of("patty").context.cookies())
    page = context.new_page()
    open_page(page, platform)
    stop_button = page.get_by_role("button", name="Stop pat-1")
    stale_note = page.get_by_text("not live since")
    stop_button.focus()
    context.set_offline(True)
    expect(stale_note).to_be_visible()
    expect(page.locator("main button:visible")).to_have_count(0)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        lab.save_picture_variants(page, f"not-live-{theme}")
    page.emulate_media(media="print")
    expect(stale_note).to_be_hidden()
    print_header = "() => getComputedStyle(document.querySelector('main'), '::before').content"
    assert re.match(r'"as of .*\d, .*\d:\d\d', page.evaluate(print_header))
    page.emulate_media(media="screen")
    # The proxy replies 503 while the service is down.
    page.route("**/live/gpus", lambda route: route.fulfill(status=503))
    with page.expect_response("**/live/gpus"):
        context.set_offline(False)
    expect(stale_note).to_be_visible()
    page.unroute("**/live/gpus")

    expect(stale_note).to_be_hidden()
    expect(stop_button).to_be_focused()


def test_stop_button_requires_a_second_click_after_a_row_update(platform, clients, page_of):
    page = page_of("patty")
    page.add_init_script(CONFIRMATION_NEVER_EXPIRES)
    command = ["sleep", "600"]
    clients["patty"].submit(SubmitRequest(name="brief", command=command, grace_seconds=1))
    open_page(page, platform)
    page.get_by_role("button", name="Stop brief").click()
    clients["patty"].suspend("nlp/brief")  # so that its row is drawn again
    expect(row(page, "nlp/brief").locator(".state")).to_have_text("suspended", timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Really stop? brief").click()

    expect(row(page, "nlp/brief")).to_have_count(0, timeout=TIMEOUT_MS)


def test_workload_page_shows_stop_reason_rule_and_logs(platform, clients, page_of):
    page = page_of("bob")
    name = paused_job(clients["bob"])
    open_page(page, platform, f"workloads/vision/{name}")

    expect(page.locator("#what")).to_contain_text("paused")
    expect(page.locator("#what")).to_contain_text("Stopped: vision is over its fair share")
    expect(page.locator("#what")).to_contain_text("nlp/pat-")
    expect(page.locator("#what")).to_contain_text("(rule R2)")
    expect(page.locator("#life .history li").first).to_be_visible()
    expect(page.locator("#life svg")).to_have_attribute("aria-label", re.compile("paused for"))
    # Contained: in another test a GPU became free for a moment, and this job started again.
    expect(page.locator("#logs")).to_contain_text("hello from here\n42 %\n", timeout=TIMEOUT_MS)
    expect(page.locator(".uplot canvas")).to_be_visible()
    zoom_by_dragging(page)
    lab.save_picture(page, "page-workload", whole=True)


def test_admin_previews_which_jobs_a_quota_change_would_pause(platform, clients, page_of):
    admin, bob = page_of("admin"), page_of("bob")
    open_page(bob, platform, "projects/vision")
    expect(bob.locator("form")).to_have_count(0)
    open_page(admin, platform, "projects/nlp")
    admin.get_by_label("Build quota").fill("0")
    admin.get_by_label("Quota", exact=True).fill("0")
    admin.get_by_role("button", name="Preview effect").click()

    expect(admin.locator(".outcome")).to_contain_text("would pause nlp/pat-", timeout=TIMEOUT_MS)
    assert clients["admin"].project("nlp").quota == 2.5  # as before: a preview changes nothing
    lab.save_picture(admin, "page-project", whole=True)
    open_page(admin, platform, "projects/nlp")
    admin.get_by_label("Limit", exact=True).fill("4")
    with admin.expect_navigation(timeout=TIMEOUT_MS):  # the field has 4 before it is saved, too
        admin.get_by_role("button", name="Save").click()
    expect(admin.get_by_label("Limit", exact=True)).to_have_value("4", timeout=TIMEOUT_MS)
    assert clients["admin"].project("nlp").limit == 4
    clients["admin"].put_project("nlp", ProjectPut(limit=None))


def test_submit_form_works_by_keyboard_alone(platform, clients, page_of):
    page = page_of("bob")
    open_page(page, platform, "submit")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("from-form")
    page.keyboard.press("Tab")
    page.keyboard.type("echo it was me")
    page.get_by_label("GPUs", exact=True).fill("")
    page.get_by_role("button", name="What would happen").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".outcome")).to_contain_text("vision/from-form would be submitted")
    lab.save_picture_variants(page, "submit-filled")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.press("Enter")

    expect(page.locator("#what")).to_contain_text("succeeded", timeout=TIMEOUT_MS)
    expect(page.locator("#logs")).to_contain_text("it was me", timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(f"**/{SERVICE_PATH}")


def test_hub_pages_are_readable_without_javascript(platform, clients, page_of, browser):
    page_with_scripts = page_of("bob")
    open_page(page_with_scripts, platform)
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(page_with_scripts.context.cookies())
    page = context.new_page()
    page.set_default_timeout(lab.PATIENCE_MS)
    open_page(page, platform)

    expect(page.locator("#workloads tr")).to_have_count(BOB_JOB_COUNT)
    expect(page.locator("#headline")).to_contain_text("average utilization")
    page.get_by_role("link", name="Usage").click()
    expect(page.locator("#main")).to_contain_text("vision")


def problems_by_theme(page: Page, name: str, within: str = "html") -> dict[str, list[str]]:
    """Return the accessibility violations of the open page, by theme."""
    found: dict[str, list[str]] = {}
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        lab.save_picture_variants(page, f"{name}-{theme}")
        if page_problems := problems(page, within):
            found[theme] = page_problems
    return found


@pytest.mark.axe
def test_hub_pages_have_no_accessibility_problems(platform, clients, page_of):
    page: Page = page_of("admin")
    problems_by_page = {}
    paths = {
        "gpus": "", "workload": "workloads/vision/bob-1",
        "paused": f"workloads/vision/{paused_job(clients['bob'])}", "project": "projects/vision",
        "new-project": "new-project", "usage": "usage", "submit": "submit",
    }  # fmt: skip
    for name, path in paths.items():
        open_page(page, platform, path)
        if page.locator(".plot").count():
            expect(page.locator(".uplot canvas")).to_be_visible(timeout=TIMEOUT_MS)
        if page_problems := problems_by_theme(page, name):
            problems_by_page[path] = page_problems
    form = page_of("bob")
    form.goto(f"{platform.url}/hub/spawn")
    if page_problems := problems_by_theme(form, "form", "#runai-form"):
        problems_by_page["spawn form"] = page_problems

    assert problems_by_page == {}


@pytest.mark.axe
def test_refusal_page_names_the_missing_workload_and_is_accessible(
    platform, clients, page_of, browser
):
    # A separate page: Chromium logs a refused page as an error to its console.
    context = browser.new_context()
    context.add_cookies(page_of("patty").context.cookies())
    page = context.new_page()
    page.set_default_timeout(lab.PATIENCE_MS)
    reply = page.goto(f"{platform.url}/{SERVICE_PATH}workloads/vision/bob-1")
    assert reply is not None
    assert reply.status == 404  # first visit: through the hub's login, and back

    expect(page.locator("#main")).to_contain_text("There is no workload vision/bob-1")
    assert problems_by_theme(page, "refusal") == {}


def test_hub_pages_fit_the_width_of_a_phone(platform, clients, page_of):
    page: Page = page_of("bob")
    phone_width = 390
    page.set_viewport_size({"width": phone_width, "height": 844})
    widths = {}
    for path in ("", "workloads/vision/bob-1", "projects/vision", "usage", "submit"):
        open_page(page, platform, path)
        widths[path] = page.evaluate("document.documentElement.scrollWidth")

    assert {path: width for path, width in widths.items() if width > phone_width} == {}
