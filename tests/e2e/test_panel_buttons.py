"""The panel in a real JupyterLab: it updates while a cell runs, and its buttons work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from accessibility import problems
from e2e import lab
from hub_platform import HubPlatform
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.timeout(900),
]

TIMEOUT_MS = 90_000

NOTEBOOK_CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel, submit",
    "job = submit(['sleep', '600'], gpus=1, name='exp1', grace_seconds=1)",
    "panel()",
    "import time\ntime.sleep(600)  # the kernel hears nothing until this ends",
]


PANEL_SNAPSHOTS = [
    """
- region "Quota":
  - heading "Quota" [level=3]
  - 'progressbar "vision: quota"'
""",
    r"""
- region "Allocated and utilized":
  - heading "My GPUs" [level=3]
  - 'img /My GPUs over the last 10 minutes. now .* allocated.*/'
""",
    """
- table:
  - rowgroup:
    - row:
      - columnheader "Name"
      - columnheader "State"
      - columnheader "GPUs"
      - columnheader "Utilized"
      - columnheader "Average"
      - columnheader "Actions"
""",
    """
- row:
  - cell "Details of exp1":
    - button "Details of exp1"
  - cell /running/
  - cell "1 of 1"
  - cell
  - cell
  - cell:
    - link "Output and history of exp1"
    - button "Suspend exp1"
    - button "Stop exp1"
""",
]


@pytest.fixture
def busy_page(platform: HubPlatform, page_of: Callable[[str], Page]) -> Page:
    """Return bob's notebook with a panel and a busy kernel; he has never visited the service."""
    page = page_of("bob")
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "busy.ipynb", NOTEBOOK_CELLS)
    lab.open_notebook(page, platform.url, "bob", "busy.ipynb")
    lab.run_all_cells(page)
    return page


def expect_busy(page: Page) -> None:
    """Wait until the last cell runs; the status bar lags behind."""
    expect(page.locator(".jp-InputPrompt").last).to_contain_text("[*]", timeout=TIMEOUT_MS)


def test_panel_buttons_suspend_and_resume_a_job_while_a_cell_runs(
    platform: HubPlatform, busy_page: Page
) -> None:
    panel = busy_page.locator(".jp-OutputArea .runai-panel")
    state = panel.get_by_role("row").filter(has_text="exp1").locator(".runai-state")
    bob = platform.client("bob")

    expect(state).to_contain_text("running", timeout=TIMEOUT_MS)
    expect_busy(busy_page)
    for part in PANEL_SNAPSHOTS:  # the tree that screen readers get
        expect(panel).to_match_aria_snapshot(part, timeout=TIMEOUT_MS)
    panel.get_by_role("button", name="Suspend exp1").click()
    expect(state).to_contain_text("suspended", timeout=TIMEOUT_MS)
    announcement = panel.get_by_role("status").filter(has_text="exp1: suspended")
    expect(announcement).to_have_count(1, timeout=TIMEOUT_MS)
    assert bob.workload("vision/exp1").state == "suspended"

    panel.get_by_role("button", name="Resume exp1").click()
    expect(state).to_contain_text("running", timeout=TIMEOUT_MS)
    expect(panel.get_by_text("simulated GPUs").first).to_be_visible()
    lab.save_picture(busy_page, "variants/panel")

    with busy_page.expect_popup() as popup:
        panel.get_by_role("link", name="Output and history of exp1").click()
    expect(popup.value.locator("#what")).to_contain_text("vision/exp1", timeout=TIMEOUT_MS)
    popup.value.close()

    panel.get_by_role("button", name="Stop exp1").click()
    panel.get_by_role("button", name="Really stop exp1").click()
    eventually(lambda: [w.kind for w in bob.workloads()] == ["session"])
    expect(panel.get_by_role("row").filter(has_text="exp1")).to_have_count(0, timeout=TIMEOUT_MS)
    expect_busy(busy_page)

    assert panel.get_by_text("not live since").count() == 0
    busy_page.get_by_role("menuitem", name="Kernel", exact=True).click()
    busy_page.locator(".lm-Menu-item").filter(has_text="Restart Kernel").first.click()
    busy_page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(panel.get_by_text("not live since")).to_be_visible(timeout=TIMEOUT_MS)
    expect(panel.get_by_role("button")).to_have_count(0)
    lab.save_picture(busy_page, "variants/panel-not-live")


def test_notebook_7_panel_updates_and_its_buttons_react_to_the_keyboard(
    platform: HubPlatform, page_of: Callable[[str], Page]
) -> None:
    page = page_of("patty")
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "patty" / "seven.ipynb", NOTEBOOK_CELLS)
    lab.open_in_notebook_7(page, platform.url, "patty", "seven.ipynb")
    lab.run_all_cells(page)
    panel = page.locator(".jp-OutputArea .runai-panel")
    state = panel.get_by_role("row").filter(has_text="exp1").locator(".runai-state")

    expect(state).to_contain_text("running", timeout=TIMEOUT_MS)
    expect_busy(page)
    button = panel.get_by_role("button", name="Suspend exp1")
    button.focus()
    page.keyboard.press("Enter")
    expect(state).to_contain_text("suspended", timeout=TIMEOUT_MS)
    lab.save_picture(page, "variants/notebook-7")
    page.keyboard.press("Tab")  # past Resume, which replaced Pause
    expect(panel.get_by_role("button", name="Stop exp1")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("row").filter(has_text="exp1")).to_have_count(0, timeout=TIMEOUT_MS)
    lab.stop_server(page, platform.url)


VIEW_CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel, quota, status, submit",
    "panel()",
    "quota()",
    "status()",
    "submit(['sleep', '600'], gpus=1, name='{}', grace_seconds=1)",
    "%%gpu\nsum(range(1000))",
]


@pytest.mark.axe
def test_notebook_views_have_no_accessibility_problems(platform, page_of):
    home = platform.data_dir / "users" / "patty"
    page = page_of("patty")
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    page.set_viewport_size({"width": 1360, "height": 1900})  # a notebook has no full page
    problems_by_theme = {}
    for theme in ("Light", "Dark"):
        lab.set_theme(home, theme)
        notebook = f"views-{theme.lower()}"
        lab.write_notebook(
            home / f"{notebook}.ipynb", [cell.format(notebook) for cell in VIEW_CELLS]
        )
        lab.open_notebook(page, platform.url, "patty", f"{notebook}.ipynb")
        is_light = str(theme == "Light").lower()
        body = page.locator("body")
        expect(body).to_have_attribute("data-jp-theme-light", is_light, timeout=TIMEOUT_MS)
        lab.run_all_cells(page)

        expect(page.locator("p.runai-status")).to_contain_text("½ GPU · ", timeout=TIMEOUT_MS)
        expect(page.locator(".runai-jobs")).to_contain_text("running", timeout=TIMEOUT_MS)
        output = page.locator(".jp-OutputArea-output").last
        expect(output).to_contain_text("GPU busy", timeout=TIMEOUT_MS)
        lab.save_picture(page, f"variants/views-{theme.lower()}-desk")
        if theme_problems := problems(page, ".jp-OutputArea .runai"):
            problems_by_theme[theme] = theme_problems

    assert problems_by_theme == {}
