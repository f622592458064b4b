"""The page of a session that waits says what for, and goes on when it is free."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from playwright.sync_api import Page, expect

from e2e import lab
from hub_platform import HubPlatform
from runai.hub_service.wire.schemas import ProjectPut

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def platform(start_platform: Callable[[], HubPlatform]) -> HubPlatform:
    """Run a platform of its own: the test changes project vision."""
    return start_platform()


def test_spawn_page_of_a_waiting_session_has_the_reason_of_the_wait(
    platform: HubPlatform, page_of: Callable[[str], Page]
) -> None:
    # Patty joins vision; bob has the project's only half GPU for sessions.
    members = ["bob", "patty"]
    platform.client("admin").put_project(
        "vision", ProjectPut(build_quota=Decimal("0.5"), members=members)
    )
    bob_page, patty_page = page_of("bob"), page_of("patty")
    lab.start_session(bob_page, platform.url, "½ GPU")
    lab.wait_for_lab(bob_page)
    patty_page.goto(f"{platform.url}/hub/spawn")
    patty_page.get_by_label("Project").select_option("vision")
    lab.choose_fraction(patty_page, "½ GPU")
    expect(patty_page.get_by_text("would wait").first).to_be_visible()
    lab.save_picture(patty_page, "form-would-wait")
    lab.submit_spawn_form(patty_page)

    reason = patty_page.get_by_text(
        "the build quota of vision is 0.5 GPUs, and its notebooks hold 0.5: bob 0.5"
    )
    expect(reason.first).to_be_visible(timeout=90_000)
    lab.save_picture(patty_page, "waiting")

    # Bob stops his server; patty gets the half GPU.
    lab.stop_server(bob_page, platform.url)
    lab.wait_for_lab(patty_page)
