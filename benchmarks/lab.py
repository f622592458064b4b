"""Measure JupyterLab's extension in a real browser: how soon it shows, and what it costs when idle.

    python benchmarks/lab.py     # prints, and writes benchmarks/results/lab.json

The baseline is JupyterLab itself on the same page: the seconds until it is usable, and its own
requests. Needs Chromium and an idle machine; `load` records how idle it was.
"""

import json
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from machine import measured
from platforms import seconds_until, simulated
from playwright.sync_api import Page, Request, WebSocket, sync_playwright

RESULTS = Path(__file__).parent / "results" / "lab.json"
ROUNDS = 5
IDLE_SECONDS = 60
STATUS = ".runai-lab-line"
USABLE = "#jp-main-dock-panel .jp-Launcher"
WAIT_MS = 90_000


def log_in(page: Page, root: str, folder: Path) -> None:
    """Log bob in and start his server with the form's first choice."""
    words = (folder / "data/secrets/passwords.txt").read_text().split()
    page.goto(f"{root}/hub/login")
    page.fill("#username_input", "bob")
    page.fill("#password_input", words[words.index("bob") + 1])
    page.click("#login_submit")
    page.goto(f"{root}/hub/spawn/bob")
    page.click("input[type=submit], button[type=submit]")
    page.wait_for_selector(STATUS, timeout=WAIT_MS)


def load_times(page: Page, root: str) -> tuple[float, float]:
    """Return the median seconds from the navigation to the status, and to a usable JupyterLab."""
    status_s, usable_s = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        page.goto(f"{root}/user/bob/lab", wait_until="commit")
        page.wait_for_selector(USABLE, timeout=WAIT_MS)
        usable_s.append(time.perf_counter() - began)
        page.wait_for_selector(STATUS, timeout=WAIT_MS)
        status_s.append(time.perf_counter() - began)
    return statistics.median(status_s), statistics.median(usable_s)


def idle_minute(page: Page, root: str) -> tuple[int, int, int]:
    """Return our frames, our requests, and all others, of a minute without input."""
    frames: list[str | bytes] = []
    requests: list[str] = []

    def watch(socket: WebSocket) -> None:
        if "/runai/lab/" in socket.url:
            socket.on("framereceived", lambda frame: frames.append(frame))  # noqa: PLW0108 - playwright marks it

    page.on("websocket", watch)
    page.goto(f"{root}/user/bob/lab")
    page.wait_for_selector(STATUS, timeout=WAIT_MS)
    page.wait_for_timeout(10_000)
    frames.clear()

    def count(request: Request) -> None:
        requests.append(request.url)

    page.on("request", count)
    page.wait_for_timeout(IDLE_SECONDS * 1000)
    page.remove_listener("request", count)
    ours = sum("/runai/" in url for url in requests)
    return len(frames), ours, len(requests) - ours


def service_processes() -> list[psutil.Process]:
    """Return the processes of the platform's service: JupyterHub starts it again when it ends."""
    children = psutil.Process().children(recursive=True)
    return [process for process in children if is_service(process)]


def is_service(process: psutil.Process) -> bool:
    """Return True for the service itself; False for its children, and for what has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()[-2:] == ["-m", "runai.hub_service"]
    return False


def outage(page: Page) -> tuple[float, float]:
    """Keep the service down; return the seconds until the status says so, and until it is live."""

    def is_away() -> bool:
        for process in service_processes():
            process.kill()
        return "disconnected" in page.inner_text(STATUS)

    away = seconds_until(is_away)
    return away, seconds_until(lambda: "disconnected" not in page.inner_text(STATUS))


def main() -> None:
    """Run everything once and save the figures."""
    environment = measured()
    with simulated(2) as (root, folder), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=sys.argv[1] if sys.argv[1:] else "/usr/bin/chromium",
            args=["--no-sandbox"],
        )
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        log_in(page, root, folder)
        status_s, usable_s = load_times(page, root)
        frames, ours, foreign = idle_minute(page, root)
        away, back = outage(page)
        browser.close()
    figures = {
        "status_visible_s": (status_s, usable_s),
        "idle_requests_a_minute": (ours, foreign),
        "idle_frames_a_minute": (frames, None),
        "disconnected_after_s": (away, None),
        "live_again_after_s": (back, None),
    }
    result = {
        **environment,
        "figures": {
            what: {
                "value": round(value, 2),
                "baseline": None if baseline is None else round(baseline, 2),
                "ratio": round(value / baseline, 2) if baseline else None,
            }
            for what, (value, baseline) in figures.items()
        },
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
