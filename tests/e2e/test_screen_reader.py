"""Accessibility tree of each page in Chromium, and the tab order of its controls.

No screen reader runs here: the tests assert the tree that all of them read, with its names, roles,
live regions and tables. The panel is in `test_panel_buttons`.
"""

from __future__ import annotations

import sys

import pytest
from playwright.sync_api import Page, expect

from hub_platform import HubPlatform
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TIMEOUT_MS = 90_000
SERVICE_PATH = "services/runai/"
PROGRAM = "import time\nprint('printer', flush=True)\ntime.sleep(86400)"
PRINTING_COMMAND = [sys.executable, "-c", PROGRAM]

PAGE_FRAME = """
- link "Skip to the content"
- banner:
  - link "GPUs"
  - navigation "Pages":
    - link "Now"
    - link "Usage"
    - link "Submit a job"
    - link "JupyterHub"
"""

RANGE_LINKS = """
- navigation "Range":
  - link "1h"
  - link "24h"
  - link "7d"
  - link "30d"
"""

USAGE_CHART = r"""
- figure "Allocated and utilized over time":
  - img /GPUs allocated, (\d+ % of them utilized on average|nothing measured)/
  - button "Zoom in"
  - button "Zoom out"
  - button "Earlier"
  - button "Later"
  - button "All"
"""

AVERAGES = r"""
- term: average utilization
- definition: /\d+ %/
- definition
- term: GPU-hours used
- definition
- definition: /of .* allocated/
- term: idle GPU-hours
- definition
- definition: /less than 1 % busy/
"""

GPUS_PAGE = [
    r"""
- heading "GPUs" [level=1]
- paragraph: /\d of 5 simulated GPUs allocated/
""",
    RANGE_LINKS,
    AVERAGES,
    USAGE_CHART,
    r"""
- region "Devices":
  - heading "Devices" [level=2]
  - heading /.+/ [level=3]
  - heading "GPU 0 simulated" [level=4]
  - img /1 allocated, .*/
  - paragraph: /1 allocated.*/
  - paragraph:
    - link "printer"
""",
    r"""
- region "Projects":
  - heading "Projects" [level=2]
  - link "vision"
  - 'img /vision. 1 of 2\.5, .*/'
""",
    r"""
- table "Workloads":
  - rowgroup:
    - row:
      - columnheader "Name"
      - columnheader "User"
      - columnheader "State"
      - columnheader "Allocated"
      - columnheader "Utilized"
      - columnheader "Memory"
      - columnheader "GPU-hours"
      - columnheader "Why"
      - columnheader "Actions"
  - rowgroup:
    - row:
      - cell "vision/printer":
        - link "vision/printer"
      - cell "bob"
      - cell "running"
      - cell "1 of 1"
      - cell
      - cell
      - cell
      - cell
      - cell "Suspend printer Stop printer":
        - button "Suspend printer"
        - button "Stop printer"
""",
]

WORKLOAD_PAGE = [
    r"""
- region "vision/printer running":
  - heading "vision/printer running" [level=1]
  - button "Suspend printer"
  - button "Stop printer"
  - term: User
  - definition: bob
""",
    r"""
- region "What happened":
  - heading "What happened" [level=2]
  - 'img /Its life. .*running for .*/'
  - list "What happened":
    - listitem: /runs as process/
""",
    RANGE_LINKS,
    USAGE_CHART,
    r"""
- log "Output": /printer/
""",
]

PROJECT_PAGE = [
    r"""
- region "Project vision":
  - heading "Project vision" [level=1]
  - link "vision"
  - 'img /vision. 1 of 2\.5, .*/'
  - term: quota
  - definition: "2.5"
""",
    USAGE_CHART,
    r"""
- textbox "Quota": "2.5"
- textbox "Limit"
""",
    r"""
- textbox "Members": bob
- textbox "Groups"
- textbox "Admins"
""",
    """
- paragraph:
  - button "Preview effect"
  - button "Save"
- status
""",
]

USAGE_PAGE = [
    """
- heading "Usage, the last 24 hours" [level=1]
""",
    """
- heading "By project" [level=2]
- link "CSV of usage by project"
""",
    """
- table "By project":
  - rowgroup:
    - row:
      - columnheader "Project"
      - columnheader "GPUs held on average"
      - columnheader "Utilized"
      - columnheader "GPU-hours allocated"
      - columnheader "used"
      - columnheader "idle"
""",
]

SUBMIT_PAGE = [
    r"""
- heading "Submit a job" [level=1]
- combobox "Project":
  - option /vision/ [selected]
- textbox "Name"
""",
    """
- textbox "Command"
""",
    """
- checkbox "Elastic"
""",
    """
- group: More options
- paragraph:
  - button "What would happen"
  - button "Submit"
- status
""",
]

PAGES = {
    "gpus": ("bob", "", GPUS_PAGE),
    "workload": ("bob", "workloads/vision/printer", WORKLOAD_PAGE),
    "project": ("admin", "projects/vision", PROJECT_PAGE),
    "usage": ("bob", "usage", USAGE_PAGE),
    "submit": ("bob", "submit", SUBMIT_PAGE),
}


@pytest.fixture(scope="module", autouse=True)
def _running_job(platform: HubPlatform) -> None:
    """Start a job of bob's that writes one line."""
    client = platform.client("bob")
    client.submit(SubmitRequest(name="printer", command=PRINTING_COMMAND, gpus=1, grace_seconds=1))
    eventually(lambda: client.workload("vision/printer").state == "running", within=60)


def open_page(page: Page, platform: HubPlatform, path: str) -> Page:
    page.goto(f"{platform.url}/{SERVICE_PATH}{path}")
    expect(page.locator("#main")).to_be_visible()
    if page.locator(".plot").count():
        expect(page.locator(".uplot canvas")).to_be_visible(timeout=TIMEOUT_MS)
    return page


FIND_TAB_STOPS = """() => [...document.querySelectorAll(
    "a[href], button, input, select, summary, textarea, [tabindex='0']")]
    .filter((each) => each.checkVisibility({visibilityProperty: true}))"""
RECORD_TAB_STOPS = f"(window.stops = ({FIND_TAB_STOPS})()).map((e) => e.outerHTML.slice(0, 80))"
READ_FOCUS = """() => {
    const focused = document.activeElement;
    const style = getComputedStyle(focused);
    const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    return [window.stops.indexOf(focused), isOutlined];  // updates of the page keep elements
}"""


@pytest.mark.parametrize(("user", "path", "aria_snapshots"), PAGES.values(), ids=PAGES)
def test_hub_page_has_roles_names_live_regions_and_a_visible_tab_order(
    platform, page_of, user, path, aria_snapshots
):
    page = open_page(page_of(user), platform, path)

    expect(page.locator("body")).to_match_aria_snapshot(PAGE_FRAME, timeout=TIMEOUT_MS)
    for part in aria_snapshots:
        expect(page.locator("main")).to_match_aria_snapshot(part, timeout=TIMEOUT_MS)

    # Parts that update by themselves are live regions.
    live_regions = {"message": "alert", "said": "status", "away": "status"}
    if path == "":
        live_regions["notifications .history"] = "log"
    if path.startswith("workloads"):
        live_regions["logs"] = "log"
    for element_id, role in live_regions.items():
        expect(page.locator(f"#{element_id}")).to_have_attribute("role", role)

    # Tab reaches every control in reading order, and the focus is visible.
    tab_stops = page.evaluate(RECORD_TAB_STOPS)
    for position, element_html in enumerate(tab_stops):
        page.keyboard.press("Tab")
        focused_position, is_outlined = page.evaluate(READ_FOCUS)
        assert focused_position == position, element_html
        assert is_outlined, element_html


def test_form_field_hint_is_the_accessible_description_of_the_field(platform, page_of):
    page = open_page(page_of("admin"), platform, "projects/vision")
    limit = page.get_by_label("Limit", exact=True)

    expect(limit).to_have_accessible_description("never more than this; empty: none")


def test_first_tab_stop_skips_to_the_content(platform, page_of):
    page = open_page(page_of("bob"), platform, "")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.locator("main")).to_be_focused()


def test_spawn_form_exposes_its_choices_as_radio_buttons(platform, page_of):
    page = page_of("patty")
    page.goto(f"{platform.url}/hub/spawn")

    for part in SPAWN_FORM:
        expect(page.locator("#runai-form")).to_match_aria_snapshot(part)


SPAWN_FORM = [
    r"""
- paragraph: /\d.* of 5 GPUs free/
""",
    """
- radio "½ GPU"
""",
]
