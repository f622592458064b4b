"""The whole platform, started as a user starts it, and a real browser.

| fixture | value |
|---|---|
| `start_platform` | starts `runai up` on a new data directory; stopped after the module |
| `platform` | the run's platform of five simulated GPUs, without other modules' jobs and servers |
| `browser` | a real headless Chromium, for this module |
| `page_of` | a signed-in page of a user; a console error fails the test |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from e2e import lab
from hub_platform import HubPlatform, runai_up
from waiting import eventually

expect.set_options(timeout=60_000)
"""Playwright's default of five seconds is short beside another test."""


@pytest.fixture(scope="module")
def start_platform(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., HubPlatform]]:
    """Start platforms with the arguments of `runai_up`; stop them at the end of the module."""
    started: list[HubPlatform] = []

    def start(**options: Any) -> HubPlatform:
        platform = runai_up(tmp_path_factory.mktemp("platform"), **options)
        started.append(platform)
        platform.start()
        return platform

    yield start
    for platform in started:
        platform.stop()


@pytest.fixture(scope="module")
def platform(five_gpus: HubPlatform) -> Iterator[HubPlatform]:
    """Return the platform of the run; end the module's jobs and servers after it."""
    yield five_gpus
    for user in ("bob", "patty"):
        five_gpus.stop_server(user)
    admin = five_gpus.client("admin")
    for workload in admin.workloads():
        admin.delete(workload.id)
    eventually(lambda: not admin.workloads(), within=60, what="no workload is left")


@pytest.fixture(scope="module")  # Playwright's loop would conflict with other modules' loops
def browser(chromium: Path) -> Iterator[Browser]:
    """Start the machine's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def page_of(browser: Browser, platform: HubPlatform) -> Iterator[Callable[[str], Page]]:
    """Sign users in, each in a new browser context; a console error fails the test."""

    def sign_in(page: Page, user: str) -> None:
        lab.sign_in(page, platform.url, user, platform.password(user))

    with lab.user_pages(browser, sign_in) as open_page:
        yield open_page
