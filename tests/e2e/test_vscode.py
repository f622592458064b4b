"""The panel in VS Code's widget renderer: live, with buttons, without requests to other hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from accessibility import problems
from e2e import lab
from e2e.vscode import notebook
from hub_platform import HubPlatform
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.axe,
    pytest.mark.vscode,
    pytest.mark.timeout(900),
]

TIMEOUT_S = 120.0


@pytest.fixture
def recorded_page(browser: Browser) -> Iterator[tuple[Page, list[str], list[str]]]:
    """Return a page, the errors in its console, and the addresses that it requests."""
    errors: list[str] = []
    requested: list[str] = []
    context = browser.new_context(viewport={"width": 900, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(lab.PATIENCE_MS)
    opened.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: requested.append(request.url))
    yield opened, errors, requested
    context.close()


@pytest.fixture
def environ(platform: HubPlatform) -> Iterator[dict[str, str]]:
    """Start a job of bob's; return the environment of a kernel that he started in VS Code."""
    client = platform.client("bob")
    token = platform.login_token("bob")
    request = SubmitRequest(name="in-vscode", command=["sleep", "86400"], gpus=1, grace_seconds=1)
    client.submit(request)
    eventually(lambda: client.workload("vision/in-vscode").state == "running", within=TIMEOUT_S)
    yield {"RUNAI_API_URL": client.url, "JUPYTERHUB_API_TOKEN": token}
    client.delete("vision/in-vscode")


def test_vscode_panel_is_live_and_its_buttons_act_through_the_kernel(
    platform, environ, recorded_page
):
    page, console_errors, requested_urls = recorded_page
    bob = platform.client("bob")
    with notebook(page, environ) as vscode_notebook:

        def wait_until(condition: Callable[[], bool], what: str) -> None:
            def is_true() -> bool:
                vscode_notebook.forward_messages()
                return condition()

            eventually(is_true, within=TIMEOUT_S, what=what)

        vscode_notebook.run("from runai.widgets import panel\npanel()")
        row = page.locator(".runai-panel").get_by_role("row").filter(has_text="in-vscode")
        wait_until(lambda: row.count() == 1, "the panel shows the job")
        assert "running" in (row.text_content() or "")
        assert "in-vscode" in "".join(vscode_notebook.texts), "without widgets there is text"

        page.get_by_role("button", name="Suspend in-vscode").focus()
        page.keyboard.press("Enter")
        wait_until(lambda: "suspended" in (row.text_content() or ""), "the pause is visible")
        assert bob.workload("vision/in-vscode").state == "suspended"

        bob.resume("vision/in-vscode")
        wait_until(lambda: "running" in (row.text_content() or ""), "the resume is visible")
        lab.save_picture(page, "variants/vscode")
        assert problems(page, ".runai") == []

    own_url = page.url
    assert [url for url in requested_urls if not url.startswith((own_url, "blob:", "data:"))] == []
    assert console_errors == []
