"""Helpers that drive JupyterHub and JupyterLab in a real Chromium, named after users' actions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from waiting import eventually

SPAWN_MS = 180_000
PATIENCE_MS = 90_000
PICTURES = Path(os.environ["RUNAI_PICTURES"]) if "RUNAI_PICTURES" in os.environ else None
"""Folder for the documentation's pictures; None if they are not being made."""

STOP_BUTTON_IS_BOUND = """() => {
    const button = document.getElementById("stop");
    return button && window.jQuery && (jQuery._data(button, "events") || {}).click;
}"""
"""JupyterHub's script binds the button late; an earlier click has no effect."""


@contextmanager
def user_pages(
    browser: Browser, sign_in_user: Callable[[Page, str], None]
) -> Iterator[Callable[[str], Page]]:
    """Return a function that opens a user's page in a new browser context, signed in.

    Raises:
        AssertionError: at the end, if a page's console has an error, or a page of the service sent
            a request to another host.
    """
    errors: list[str] = []
    foreign_requests: list[str] = []

    def record_error(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} ({message.location.get('url', '')})")

    def record_foreign_request(page: Page, request: Request) -> None:
        page_url = urlsplit(page.url)
        if "/services/runai/" in page_url.path and urlsplit(request.url).hostname not in {
            page_url.hostname,
            None,
        }:
            foreign_requests.append(request.url)

    def open_page(user: str) -> Page:
        page = browser.new_context(
            viewport={"width": 1360, "height": 900}, ignore_https_errors=True
        ).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", record_error)
        page.on("request", lambda request: record_foreign_request(page, request))
        sign_in_user(page, user)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert not errors, errors
    assert not foreign_requests, foreign_requests


def sign_in(page: Page, url: str, user: str, password: str) -> None:
    """Log in by the form and arrive at the spawn form (or at a running server)."""
    page.goto(f"{url}/hub/login")
    page.locator("#username_input").fill(user)
    page.locator("#password_input").fill(password)
    page.locator("#login_submit").click()
    page.wait_for_url(lambda address: "/hub/login" not in address)


def start_session(page: Page, url: str, fraction: str) -> None:
    """Choose a fraction on the spawn form and submit it."""
    page.goto(f"{url}/hub/spawn")
    choose_fraction(page, fraction)
    submit_spawn_form(page)


def choose_fraction(page: Page, fraction: str) -> None:
    """Select an offered fraction."""
    page.get_by_label(fraction, exact=True).filter(visible=True).check()


def submit_spawn_form(page: Page) -> None:
    """Submit the spawn form."""
    page.get_by_role("button", name="Start").click()


def stop_server(page: Page, url: str) -> None:
    """Stop the user's server from the hub's home page; return when it has stopped."""
    stop = page.locator("#stop")
    page.goto(f"{url}/hub/home")
    page.wait_for_function(STOP_BUTTON_IS_BOUND)
    stop.click()
    expect(stop).to_be_hidden(timeout=SPAWN_MS)

    def has_stopped() -> bool:
        # The button disappears during a stop that takes longer than ten seconds, before its end.
        page.goto(f"{url}/hub/home")
        return stop.count() == 0

    eventually(has_stopped, within=SPAWN_MS / 1000, what="the server has stopped")


def wait_for_lab(page: Page) -> None:
    """Wait until JupyterLab is usable."""
    page.wait_for_url("**/lab**", timeout=SPAWN_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=SPAWN_MS)


def write_notebook(path: Path, texts: Sequence[str]) -> None:
    """Write a notebook with these cells."""
    cells = [nbformat.v4.new_code_cell(text) for text in texts]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


def set_theme(home: Path, theme: str) -> None:
    """Choose a user's theme, Light or Dark, for the next page that is opened."""
    folder = home / ".jupyter/lab/user-settings/@jupyterlab/apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    setting = json.dumps({"theme": f"JupyterLab {theme}"})
    (folder / "themes.jupyterlab-settings").write_text(setting)


def open_notebook(page: Page, url: str, user: str, path: str) -> None:
    """Open a notebook and wait until its kernel is idle (the status bar says so)."""
    page.goto(f"{url}/user/{user}/lab/tree/{path}?reset")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=SPAWN_MS)
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=SPAWN_MS)


def open_in_notebook_7(page: Page, url: str, user: str, path: str) -> None:
    """Open a notebook in Notebook 7 and wait until its kernel is connected.

    Its indicator is unreliable: it shows "idle" before there is a kernel, and cells run then are
    silently dropped. The server knows whether the page is connected to a kernel.
    """
    page.goto(f"{url}/user/{user}/notebooks/{path}")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=SPAWN_MS)

    def connected() -> bool:
        sessions = page.request.get(f"{url}/user/{user}/api/sessions").json()
        kernels = [s["kernel"] for s in sessions if s["path"] == path]
        return any(k["connections"] > 0 and k["execution_state"] == "idle" for k in kernels)

    eventually(connected, within=SPAWN_MS / 1000, what="the page is connected to its kernel")


def run_all_cells(page: Page) -> None:
    """Run every cell of the open notebook."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def save_picture_variants(page: Page, name: str) -> None:
    """Save the whole page in desktop and phone sizes, for review; not for the documentation."""
    if PICTURES is not None:
        for width, device in ((1360, "desk"), (390, "phone")):
            page.set_viewport_size({"width": width, "height": 900})
            save_picture(page, f"variants/{name}-{device}", whole=True)
        page.set_viewport_size({"width": 1360, "height": 900})


def save_picture(page: Page, name: str, *, whole: bool = False) -> None:
    """Save a screenshot if pictures are being made; `whole`: of the page, however long."""
    if PICTURES is not None:
        path = PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path, full_page=whole)
