"""Drive JupyterHub and JupyterLab in a real Chromium, in the words a user would use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

SPAWN_MS = 60_000


@contextmanager
def pages(browser: Browser, arrive: Callable[[Page, str], None]) -> Iterator[Callable[[str], Page]]:
    """Give a function that opens a user's page in a browser of its own; `arrive` signs in.

    Raises:
        AssertionError: at the end, if the console of one of them told of an error.
    """
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} ({message.location.get('url', '')})")

    def open_page(user: str) -> Page:
        page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        page.on("console", note)
        arrive(page, user)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert errors == []


def sign_in(page: Page, url: str, user: str, password: str) -> None:
    """Log in by the form and arrive at the spawn form (or at a running server)."""
    page.goto(f"{url}/hub/login")
    page.locator("#username_input").fill(user)
    page.locator("#password_input").fill(password)
    page.locator("#login_submit").click()
    page.wait_for_url(lambda address: "/hub/login" not in address)


def take(page: Page, url: str, fraction: str) -> None:
    """Choose a fraction on the spawn form and send it."""
    page.goto(f"{url}/hub/spawn")
    choose(page, fraction)
    start(page)


def choose(page: Page, fraction: str) -> None:
    """Mark a fraction on offer."""
    page.get_by_label(fraction, exact=True).filter(visible=True).check()


def start(page: Page) -> None:
    """Send the spawn form."""
    page.get_by_role("button", name="Start").click()


def stop_server(page: Page, url: str) -> None:
    """Stop the user's server from the hub's home page."""
    page.goto(f"{url}/hub/home", wait_until="networkidle")  # its script binds the button late
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_be_hidden(timeout=SPAWN_MS)


def wait_for_lab(page: Page) -> None:
    """Return when JupyterLab can be used."""
    page.wait_for_url("**/lab**", timeout=SPAWN_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=SPAWN_MS)


def open_notebook(page: Page, url: str, user: str, path: str) -> None:
    """Open a notebook and wait until its kernel is idle (the status bar says so)."""
    page.goto(f"{url}/user/{user}/lab/tree/{path}?reset")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=SPAWN_MS)
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=SPAWN_MS)


def run_all(page: Page) -> None:
    """Run every cell of the open notebook."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def picture(page: Page, folder: Path | None, name: str) -> None:
    """Keep a screenshot where the documentation is made; elsewhere do nothing."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / f"{name}.png")
