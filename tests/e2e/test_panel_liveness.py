"""The panel in JupyterLab, live or not: two browsers, the end of a kernel, a saved notebook."""

from __future__ import annotations

import re

import nbformat
import pytest
from playwright.sync_api import Page, expect

from e2e import lab
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

NOTEBOOK_CELLS = ["from runai.widgets import panel\npanel()"]
TIME_OF_LAST_UPDATE = re.compile(r"as of \d+ \w+, \d+:\d\d")


def expect_live(page: Page) -> None:
    panel = page.locator(".jp-OutputArea .runai-panel")
    expect(panel.get_by_role("button", name="Stop exp1")).to_be_visible()
    expect(panel.get_by_text("not live since")).to_have_count(0)


def expect_stale(page: Page, picture_name: str) -> None:
    panel = page.locator(".jp-OutputArea .runai-panel")
    expect(panel.get_by_text("not live since")).to_be_visible()
    expect(panel.get_by_role("button")).to_have_count(0)
    lab.save_picture(page, f"variants/panel-{picture_name}")


def test_panel_is_live_until_its_kernel_ends_and_not_in_a_saved_notebook(platform, page_of):
    home = platform.data_dir / "users" / "bob"
    platform.client("bob").submit(SubmitRequest(name="exp1", command=["sleep", "600"], gpus=1))
    page = page_of("bob")
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(home / "live.ipynb", NOTEBOOK_CELLS)
    lab.open_notebook(page, platform.url, "bob", "live.ipynb")
    lab.run_all_cells(page)
    expect_live(page)
    page.keyboard.press("Control+s")
    eventually(lambda: "as of" in (home / "live.ipynb").read_text())

    second_page = page_of("bob")
    lab.open_notebook(second_page, platform.url, "bob", "live.ipynb")
    for open_page in (page, second_page):
        expect_live(open_page)
        row = (
            open_page.locator(".jp-OutputArea .runai-panel")
            .get_by_role("row")
            .filter(has_text="exp1")
        )
        open_page.get_by_role("button", name="Suspend exp1").click()
        expect(row).to_contain_text("suspended")
        open_page.get_by_role("button", name="Resume exp1").click()
        expect(row).to_contain_text("running")
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    expect_stale(page, "shut-down")
    expect_stale(second_page, "shut-down-in-the-other-browser")

    saved = nbformat.read(home / "live.ipynb", 4)
    saved.metadata["kernelspec"] = {"name": "none", "display_name": "None", "language": "none"}
    saved.metadata["language_info"] = {"name": "none"}
    nbformat.write(saved, home / "saved.ipynb")
    page.goto(f"{platform.url}/user/bob/lab/tree/saved.ipynb?reset")
    page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
    expect(page.locator(".jp-OutputArea-output")).to_contain_text(TIME_OF_LAST_UPDATE)
