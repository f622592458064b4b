"""A session, its panel, the page and the command line behind each kind of front door."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect

from e2e import lab
from e2e.running import Platform
from ports import free_port
from runai.embedded.data_directory import DataDirectory
from runai.embedded.proxy.caddy_process import CaddyProcess
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

ANSWER = "42 answers to http://127.0.0.1:"
CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel\npanel()",
    "!runai doctor | grep -E 'JupyterHub|you are|Caddy|login'",
    "%%runai_submit --name through --gpus 0\nimport time\ntime.sleep(600)",
]


@dataclass
class Door:
    """One front door: the URL that users open, and the settings for it."""

    port: int
    outer: int
    root: str
    options: tuple[str, ...] = ()
    config: str = ""


def prefix(port: int, outer: int) -> Door:
    return Door(port, outer, f"http://127.0.0.1:{port}/jupyter", ("--base-url", "/jupyter/"))


def subdomains(port: int, outer: int) -> Door:
    root = f"http://hub.localhost:{port}"  # browsers resolve it without DNS
    return Door(port, outer, root, config=f'c.JupyterHub.subdomain_host = "{root}"\n')


def internal_authority(port: int, outer: int) -> Door:
    return Door(port, outer, f"https://127.0.0.1:{port}", ("--tls-internal",))


def outer_proxy(port: int, outer: int) -> Door:
    config = 'c.CaddyProxy.trusted_proxies = ["127.0.0.1/32"]\n'
    return Door(port, outer, f"https://127.0.0.1:{outer}", config=config)


@contextmanager
def tls_before(door: Door, folder: Path) -> Iterator[None]:
    """Run another proxy that terminates TLS and forwards requests, like an admin's own."""
    folder.mkdir()
    (folder / "Caddyfile").write_text(
        "{\n admin off\n skip_install_trust\n auto_https disable_redirects\n}\n"
        f"https://127.0.0.1:{door.outer} {{\n tls internal\n"
        f" reverse_proxy 127.0.0.1:{door.port}\n}}\n"
    )
    program = Path(sysconfig.get_path("scripts")) / "caddy"
    environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    process = subprocess.Popen(
        [program, "run", "--config", folder / "Caddyfile"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("make_door", [prefix, subdomains, internal_authority, outer_proxy])
def test_session_panel_page_and_terminal_are_reachable_through_each_proxy(
    make_door: Callable[[int, int], Door], tmp_path: Path, browser: Browser
) -> None:
    door = make_door(free_port(), free_port())
    data = tmp_path / "data"
    data.mkdir()
    (data / "jupyterhub_config.py").write_text(door.config)
    platform = Platform(data, root=door.root, options=door.options, port=door.port)
    try:
        with tls_before(door, tmp_path / "outer"):
            platform.start()
            log = (data / "up.log").read_text()
            own = f"http://127.0.0.1:{door.port}" if make_door is outer_proxy else door.root
            assert f"Open {own}/ and log in" in log
            with lab.pages(browser, lambda page, user: arrive(page, platform, user)) as page_of:
                play(page_of("bob"), platform)
    finally:
        platform.stop()


def arrive(page: Page, platform: Platform, user: str) -> None:
    lab.sign_in(page, platform.url, user, platform.password(user))


def play(page: Page, platform: Platform) -> None:
    """Use a notebook, a terminal and the page, and check the cookies."""
    lab.take(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "door.ipynb", CELLS)
    page.goto(page.url.split("/lab")[0] + "/lab/tree/door.ipynb?reset")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=lab.SPAWN_MS)
    lab.run_all(page)
    expect(page.locator(".jp-Notebook")).to_contain_text("you are bob")
    panel = page.locator(".runai-panel").first
    expect(panel.get_by_role("row").filter(has_text="through")).to_contain_text("running")
    expect(page.locator(".jp-Notebook")).to_contain_text("Caddy 2")
    lab.picture(page, lab.PICTURES, "door-lab")

    page.goto(page.url.split("/lab")[0] + "/lab?reset")
    with page.expect_websocket(lambda socket: "/terminals/" in socket.url) as opened:
        page.locator(".jp-LauncherCard").filter(has_text="Terminal").click()
    page.locator(".jp-Terminal").click()
    with opened.value.expect_event("framereceived", lambda frame: ANSWER in str(frame)):
        page.keyboard.type("echo $((40 + 2)) answers to $RUNAI_API_URL\n")

    with page.expect_response(lambda answer: "/live/gpus" in answer.url) as stream:
        page.goto(f"{platform.url}/services/runai/")
    assert stream.value.headers["content-type"].startswith("text/event-stream")
    expect(page.get_by_text("through").first).to_be_visible()
    secure = platform.url.startswith("https")
    sessions = [c for c in page.context.cookies() if c["name"] != "_xsrf"]
    assert {c["name"]: c["secure"] for c in sessions} == {c["name"]: secure for c in sessions}
    assert len(sessions) >= 3


COUNTING = (
    "import time\nfor number in range(100_000):\n    print(number, flush=True)\n    time.sleep(0.1)"
)


@pytest.fixture(scope="module")
def platform(start_platform: Callable[[], Platform]) -> Platform:
    """Run a platform; the tests kill its hub and proxy."""
    return start_platform()


def test_notebook_kernel_continues_after_kills_of_hub_and_proxy(
    platform: Platform, browser: Browser
) -> None:
    page = browser.new_context().new_page()
    page.set_default_timeout(lab.PATIENCE_MS)
    arrive(page, platform, "bob")
    lab.take(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "count.ipynb", [COUNTING])
    lab.open_notebook(page, platform.url, "bob", "count.ipynb")
    lab.run_all(page)
    sockets: list[WebSocket] = []
    page.on("websocket", lambda socket: sockets.append(socket))  # noqa: PLW0108 - page.on marks it
    proxy = CaddyProcess(DataDirectory(platform.data_dir).proxy)

    def goes_on() -> None:
        """Wait until the page has shown two more numbers."""
        for _ in range(2):
            before = page.locator(".jp-OutputArea").inner_text()
            expect(page.locator(".jp-OutputArea")).not_to_have_text(before)

    goes_on()
    killed = time.monotonic()
    platform.kill()
    goes_on()
    print(f"hub killed: the page counts on, {time.monotonic() - killed:.1f} s for two numbers")
    assert httpx.get(f"{platform.url}/user/bob/api").is_success
    starting = httpx.get(f"{platform.url}/hub/home")
    assert (starting.status_code, starting.headers["retry-after"]) == (503, "1")

    pid = proxy.pid()
    platform.start()
    goes_on()
    print(f"hub back {time.monotonic() - killed:.1f} s after the kill")
    assert proxy.pid() == pid
    assert sockets == []

    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: proxy.pid() not in {None, pid}, what="another proxy")
    eventually(lambda: httpx.get(f"{platform.url}/user/bob/api").is_success, what="an answer")
    print(f"proxy back {time.monotonic() - killed:.2f} s after the kill")
    goes_on()
    print(f"the page counts on {time.monotonic() - killed:.1f} s after the kill")
    assert sockets != []
