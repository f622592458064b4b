"""Stored text stays text wherever it is shown: on pages, in logs, to a program."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Dialog, Page, async_playwright

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.clusters.simulated import SimulatedExecutor, simulated_cluster
from runai.hub_service.controller.notifications.events import Notification
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device
from runai.hub_service.model.progress import Progress
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.widgets import connect, panel
from runai.widgets.panel import Panel
from service_process import TOKEN
from waiting import eventually, eventually_async


def script(label: str) -> str:
    return f"<script>alert('{label}')</script>"


def image(label: str) -> str:
    """Return an image tag that closes an attribute and a quoted text.

    Its script runs when the browser cannot load the image.
    """
    return f"""'"><img src=x onerror=alert('{label}')>"""


HOSTILE_USER = image("user")
DEVICE_UUID = "GPU-0"
DEVICE = Device(0, DEVICE_UUID, script("device"), 16_000, simulated=True)
BROKEN_DEVICE = Device(0, "GPU-1", "A", 16_000, simulated=True, fault=script("fault"))
HOSTILE_NODE = image("node")


class HostileExecutor(SimulatedExecutor):
    """An executor with one job, which reports hostile text about itself."""

    async def progress(self, only: Collection[str] | None = None) -> Mapping[str, Progress]:
        return {"vision/exp1": Progress({script("loss"): 0.5}, {image("by"): script("Adam")})}


def process(workload: str, account: str) -> dict[str, Any]:
    return {
        "device": DEVICE_UUID, "pid": 7, "workload": workload, "worker": "", "account": account,
        "name": script("program"), "notebook": image("notebook"), "utilization": 0.5,
        "memory_mib": 1,
    }  # fmt: skip


async def send_report(served, notice: str) -> None:
    """Have the node's agent report everything that it can."""
    figures = {"device": DEVICE_UUID, "utilization": 0.5, "memory_mib": 1}
    memory_notice = {"workload": "vision/exp1", "device": DEVICE_UUID, "at": time.time(),
            "rung": "notice", "text": notice}  # fmt: skip
    report = {
        "node": "lab", "at": time.time(), "interval": 1, "devices": [figures],
        "samples": [{"workload": "vision/exp1", **figures}], "notices": [memory_notice],
        "processes": [process("vision/exp1", "eve"), process("", image("account"))],
        "tiers": {}, "no_hard_limit": script("hard limit"),
    }  # fmt: skip
    async with served.http("agent") as http:
        reply = await http.post("api/v1/nodes/lab/samples", json=report)
        assert reply.status_code == 200, reply.text


@pytest.fixture
async def hostile_platform(platform_on) -> AsyncIterator[Any]:
    """Serve a platform where all names of users and objects would run in a browser."""
    cluster = simulated_cluster(
        {"lab": [DEVICE], HOSTILE_NODE: [BROKEN_DEVICE]}, clock=time.time, executor=HostileExecutor
    )
    async with platform_on(cluster) as served:
        served.platform.authenticator._users.actors[HOSTILE_USER] = Actor(HOSTILE_USER)
        root, eve = await served.client("root"), await served.client(HOSTILE_USER)
        fields = {k: [HOSTILE_USER, script(k).replace("/", "")] for k in ("groups", "admins")}
        await root.put_project("vision", ProjectPut(members=[HOSTILE_USER, "ana"], **fields))
        command = [script("program"), image("argument")]
        request = SubmitRequest(
            name="exp1", project="vision", command=command, gpus=1, env={"A": script("env")},
            workdir="/", source=script("source"),
        )  # fmt: skip
        await eve.submit(request)
        await cluster.note("vision/exp1", f"cannot start {script('history')} {image('history')}")
        await send_report(served, script("notice"))
        served.platform.recent.add(
            Notification(
                time.time(), "failed", "vision/exp1", "vision", HOSTILE_USER, script("news")
            )
        )
        yield served


class ParsedPage(HTMLParser):
    """A page as a browser parses it: its active elements and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.active_elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.text += "".join(value or "" for value in attributes.values())
        is_own_script = tag == "script" and (attributes.get("src") or "").startswith(
            "/services/runai/static/"
        )
        if (tag in {"script", "img"} and not is_own_script) or any(
            n.startswith("on") for n in attributes
        ):
            self.active_elements.append((tag, attributes))

    def handle_data(self, data: str) -> None:
        self.text += data


PAGES = {
    # The hostile texts that each page shows to an admin and to the user with the hostile name.
    ("root", ""): ("user", "fault", "node", "account", "loss", "notice"),
    ("root", "workloads/vision/exp1"): ("user", "history", "loss", "notice"),
    ("root", "projects/vision"): ("user", "groups", "admins"),
    ("root", "usage"): ("user",),
    ("root", "new-project"): (),
    ("root", "submit"): (),
    (HOSTILE_USER, ""): ("user", "fault", "node", "loss", "notice", "news"),
    (HOSTILE_USER, "workloads/vision/exp1"): ("user", "history", "loss", "notice"),
    (HOSTILE_USER, "projects/vision"): ("user", "groups", "admins"),
    (HOSTILE_USER, "usage"): ("user",),
    (HOSTILE_USER, "submit"): (),
}


async def test_html_pages_escape_stored_user_text(hostile_platform):
    active = {}
    for (user, path), text_names in PAGES.items():
        async with hostile_platform.http(user) as http:
            # The ledger counts only GPUs that were allocated for a moment at least.
            parsed = await eventually_async(partial(parsed_page_with, http, path, text_names))
            if parsed.active_elements:
                active[user, path] = parsed.active_elements

    assert active == {}


async def parsed_page_with(
    http: httpx.AsyncClient, path: str, text_names: tuple[str, ...]
) -> ParsedPage:
    """Return the page when it shows all the given texts."""
    reply = await http.get(path)
    assert reply.status_code == 200
    parsed = ParsedPage(reply.text)
    assert [name for name in text_names if f"alert('{name}')" not in parsed.text] == []
    return parsed


async def test_live_page_updates_escape_stored_user_text(hostile_platform):
    for path in ("live/gpus", "live/workloads/vision/exp1"):
        update: dict[str, Any] = {}
        async with hostile_platform.http(HOSTILE_USER) as http, http.stream("GET", path) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    update = json.loads(line.removeprefix("data: "))
                    break
        parsed_parts = [ParsedPage(part) for part in update["parts"].values()]

        assert [part.active_elements for part in parsed_parts if part.active_elements] == [], path
        assert "alert('notice')" in "".join(part.text for part in parsed_parts), path


# -- to a browser --------------------------------------------------------------------------------

FIND_ACTIVE_ELEMENTS = """() => [...document.querySelectorAll("*")].filter(
    each => [...each.attributes].some(one => one.name.startsWith("on"))
        || (each.tagName == "IMG" && each.getAttribute("src") == "x")
        || (each.tagName == "SCRIPT" && !each.src)
).map(each => each.outerHTML)"""
TIMEOUT_MS = 60_000


@pytest.fixture
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


def dialogs_of(page: Page) -> list[str]:
    """Return the messages of the page's dialogs so far; each dialog is closed."""
    messages: list[str] = []

    async def note(dialog: Dialog) -> None:
        messages.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", note)
    return messages


@pytest.mark.browser
@pytest.mark.timeout(600)
async def test_stored_user_text_runs_no_script_in_a_browser(hostile_platform, browser, monkeypatch):
    """The pages' content security policy is off, so escaping alone prevents a script."""

    async def logs(*_arguments: object, **_options: object) -> AsyncIterator[LogChunk]:
        yield LogChunk(0, 1, f"{script('line')} {image('line')}\n".encode())

    monkeypatch.setattr(hostile_platform.platform.cluster, "logs", logs)
    results: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for user, path in PAGES:
        headers = {"Authorization": f"Bearer {user}-token"}
        context = await browser.new_context(bypass_csp=True, extra_http_headers=headers)
        page = await context.new_page()
        dialogs = dialogs_of(page)
        await page.goto(f"{hostile_platform.url}{path}")
        if not path or path.startswith("workloads/"):
            later = f"of page {len(results)}"
            # An update that is sent to an open page becomes part of it, as text.
            await send_report(hostile_platform, image(later))
            await page.get_by_text(f"alert('{later}')").first.wait_for(timeout=TIMEOUT_MS)
        if path.startswith("workloads/"):
            line = page.locator("#logs", has_text="alert('line')")
            await line.wait_for(timeout=TIMEOUT_MS)
        # Requested later than any picture: a picture of a hostile text would have failed by now.
        await page.evaluate("fetch('/services/runai/static/live.js').then(reply => reply.text())")
        results[user, path] = dialogs, await page.evaluate(FIND_ACTIVE_ELEMENTS)
        await context.close()

    assert results == dict.fromkeys(results, ([], []))
    # The same text as markup does run, and the test detects it.
    page = await browser.new_page()
    dialogs = dialogs_of(page)
    async with page.expect_event("dialog", timeout=TIMEOUT_MS):
        await page.set_content(f"<p>{image('user')}</p>")

    assert dialogs == ["user"]
    assert len(await page.evaluate(FIND_ACTIVE_ELEMENTS)) == 1


MOUNT_PANEL = """async ([script, state]) => {
    const callbacks = {};
    const model = {
        get: name => name == "state" ? window.state : "",
        on: (event, callback) => { callbacks[event] = callback; },
        off: () => {}, send: message => { window.sent = message; },
    };
    window.state = state;
    window.becomes = later => { window.state = later; callbacks["change:state"](); };
    const module = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    (await import(module)).default.render({ model, el: document.body });
}"""
# Requested later than any picture of the panel: a hostile one would have failed by now.
LAST_PICTURE = """() => new Promise(failed => {
    const last = new Image();
    last.onerror = failed;
    last.src = "x";
})"""


@contextmanager
def panel_of(url: str, token: str) -> Iterator[Panel]:
    link = connect(url, token)
    view = panel()
    try:
        yield view
    finally:
        view.close()
        link.close()


@pytest.mark.browser
@pytest.mark.timeout(300)
async def test_stored_user_text_runs_no_script_in_the_notebook_panel(hostile_platform, browser):
    """The panel's state is built as in a kernel; its script runs with a front end's objects."""
    opened = panel_of(hostile_platform.url, f"{HOSTILE_USER}-token")
    view = await asyncio.to_thread(opened.__enter__)
    page = await browser.new_page()
    dialogs = dialogs_of(page)
    await page.set_content("<body></body>")
    await page.evaluate(MOUNT_PANEL, [view._esm, view.state])
    view._handle_custom_msg(await page.evaluate("window.sent"), [])
    for label in ("loss", "notice", "news"):
        await page.get_by_text(f"alert('{label}')").first.wait_for(timeout=TIMEOUT_MS)

    # An event that arrives while the panel is open becomes part of it, as text.
    await send_report(hostile_platform, image("later"))
    await eventually_async(lambda: "alert('later')" in json.dumps(view.state))
    await page.evaluate("later => window.becomes(later)", view.state)
    await page.get_by_text("alert('later')").first.wait_for(timeout=TIMEOUT_MS)
    await page.evaluate(LAST_PICTURE)
    active = await page.evaluate(FIND_ACTIVE_ELEMENTS)
    await asyncio.to_thread(opened.__exit__, None, None, None)

    assert (dialogs, active) == ([], [])


# -- to a program --------------------------------------------------------------------------------

PRINT_ARGUMENTS = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VARIABLE']]), flush=True)"
)
ARGUMENTS = [
    "; touch x $(touch y) `touch z`",
    "' && touch x && '",
    '" || touch x || "',
    "a\ntouch x\n",
    "| tee x > y",
    "*",
    "~",
    "$HOME ${PATH}",
    "\\",
    "",
    "-rf",
]
JOB_KINDS: dict[str, dict[str, Any]] = {
    "alone": {},
    "two workers": {"workers": 2},
    "elastic": {"elastic": True},
}


@pytest.mark.parametrize("fields", JOB_KINDS.values(), ids=JOB_KINDS)
async def test_job_program_receives_shell_metacharacters_unchanged(served, tmp_path, fields):
    workdir = tmp_path / "; touch x $(touch y)"
    workdir.mkdir()
    ana = await served.client("ana")
    request = SubmitRequest(
        name="shell", project="vision", gpus=1, workdir=str(workdir),
        command=[sys.executable, "-I", "-S", "-c", PRINT_ARGUMENTS, *ARGUMENTS],
        env={"VARIABLE": ARGUMENTS[0]}, **fields,
    )  # fmt: skip
    for workload in (await ana.submit(request)).workloads:
        latest = workload
        while latest.state not in {"succeeded", "failed"}:
            latest = await ana.wait(workload.id, latest.version, timeout_s=30)
        printed = [json.loads(line.text) async for line in ana.logs(workload.id)]

        assert latest.state == "succeeded"
        assert printed == [[ARGUMENTS, ARGUMENTS[0]]] * len(latest.workers)
    assert [*workdir.iterdir()] == []
    assert not {"x", "y", "z"} & {path.name for path in tmp_path.rglob("*")}


# -- into a log ----------------------------------------------------------------------------------

FORGED_LOG_LINE = "%0a2026-11-01 12:00:00,000 ERROR runai.api: forged%0d%1b[2J%e2%80%a8"


def lines(log: Path) -> list[str]:
    """Return the complete lines."""
    return log.read_text(encoding="utf-8").split("\n")[:-1]


def test_request_with_line_breaks_in_its_path_writes_one_log_line(service):
    service.start()
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": "of-the-test"}
    path = f"{service.client.url}api/v1/workloads/vision/{FORGED_LOG_LINE}/suspend"
    reply = httpx.post(path, headers=headers, timeout=60)

    assert reply.status_code in {400, 404}
    # The line is written while the answer is being sent.
    [line] = eventually(lambda: [each for each in lines(service.log) if "forged" in each])
    content = service.log.read_text(encoding="utf-8")
    assert "of-the-test" in line
    assert not {"\r", "\x1b", "\u2028"} & set(content)
    assert re.match(r"[-0-9]+ [0-9:,]+ INFO +runai.requests: POST ", line)
