"""A session, its panel, the page and the command line behind each kind of proxy."""

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
from hub_platform import HubPlatform, runai_up
from ports import free_port
from runai.embedded.data_directory import DataDirectory
from runai.embedded.proxy.caddy_process import CaddyProcess
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(900)]

TERMINAL_OUTPUT = "42 answers to http://127.0.0.1:"
NOTEBOOK_CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel\npanel()",
    "!runai doctor | grep -E 'JupyterHub|you are|Caddy|login'",
    "%%runai_submit --name proxied-job --gpus 0\nimport time\ntime.sleep(600)",
]


@dataclass
class ProxySetup:
    """One kind of proxy: the URL that users open, and the settings for it."""

    port: int
    outer_port: int
    url: str
    options: tuple[str, ...] = ()
    config: str = ""


def url_prefix(port: int, outer_port: int) -> ProxySetup:
    url = f"http://127.0.0.1:{port}/jupyter"
    return ProxySetup(port, outer_port, url, ("--base-url", "/jupyter/"))


def subdomains(port: int, outer_port: int) -> ProxySetup:
    url = f"http://hub.localhost:{port}"  # browsers resolve it without DNS
    return ProxySetup(port, outer_port, url, config=f'c.JupyterHub.subdomain_host = "{url}"\n')


def internal_authority(port: int, outer_port: int) -> ProxySetup:
    return ProxySetup(port, outer_port, f"https://127.0.0.1:{port}", ("--tls-internal",))


def outer_proxy(port: int, outer_port: int) -> ProxySetup:
    config = 'c.CaddyProxy.trusted_proxies = ["127.0.0.1/32"]\n'
    return ProxySetup(port, outer_port, f"https://127.0.0.1:{outer_port}", config=config)


@contextmanager
def run_tls_proxy_before(setup: ProxySetup, folder: Path) -> Iterator[None]:
    """Run another proxy that terminates TLS and forwards requests, like an admin's own."""
    folder.mkdir()
    (folder / "Caddyfile").write_text(
        "{\n admin off\n skip_install_trust\n auto_https disable_redirects\n}\n"
        f"https://127.0.0.1:{setup.outer_port} {{\n tls internal\n"
        f" reverse_proxy 127.0.0.1:{setup.port}\n}}\n"
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


@pytest.mark.parametrize("make_setup", [url_prefix, subdomains, internal_authority, outer_proxy])
def test_session_panel_page_and_terminal_are_reachable_through_each_proxy(
    make_setup: Callable[[int, int], ProxySetup], tmp_path: Path, browser: Browser
) -> None:
    setup = make_setup(free_port(), free_port())
    data = tmp_path / "data"
    data.mkdir()
    (data / "jupyterhub_config.py").write_text(setup.config)
    platform = runai_up(data, *setup.options, root=setup.url, port=setup.port)
    try:
        with run_tls_proxy_before(setup, tmp_path / "outer"):
            platform.start()
            log = (data / "up.log").read_text()
            is_outer = make_setup is outer_proxy
            own_url = f"http://127.0.0.1:{setup.port}" if is_outer else setup.url
            assert f"Open {own_url}/ and log in" in log
            with lab.user_pages(
                browser, lambda page, user: sign_in(page, platform, user)
            ) as page_of:
                use_session_and_page(page_of("bob"), platform)
    finally:
        platform.stop()


def sign_in(page: Page, platform: HubPlatform, user: str) -> None:
    lab.sign_in(page, platform.url, user, platform.password(user))


def use_session_and_page(page: Page, platform: HubPlatform) -> None:
    """Use a notebook, a terminal and the page, and check the cookies."""
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "door.ipynb", NOTEBOOK_CELLS)
    page.goto(page.url.split("/lab")[0] + "/lab/tree/door.ipynb?reset")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=lab.SPAWN_MS)
    lab.run_all_cells(page)
    expect(page.locator(".jp-Notebook")).to_contain_text("you are bob")
    panel = page.locator(".jp-OutputArea .runai-panel").first
    expect(panel.get_by_role("row").filter(has_text="proxied-job")).to_contain_text("running")
    expect(page.locator(".jp-Notebook")).to_contain_text("Caddy 2")
    lab.save_picture(page, "door-lab")

    page.goto(page.url.split("/lab")[0] + "/lab?reset")
    with page.expect_websocket(lambda socket: "/terminals/" in socket.url) as opened:
        page.locator(".jp-LauncherCard").filter(has_text="Terminal").click()
    page.locator(".jp-Terminal").click()
    with opened.value.expect_event("framereceived", lambda frame: TERMINAL_OUTPUT in str(frame)):
        page.keyboard.type("echo $((40 + 2)) answers to $RUNAI_API_URL\n")

    with page.expect_response(lambda reply: "/live/gpus" in reply.url) as stream:
        page.goto(f"{platform.url}/services/runai/")
    assert stream.value.headers["content-type"].startswith("text/event-stream")
    expect(page.get_by_text("proxied-job").first).to_be_visible()
    is_https = platform.url.startswith("https")
    session_cookies = [c for c in page.context.cookies() if c["name"] != "_xsrf"]
    assert [c["name"] for c in session_cookies if c["secure"] is not is_https] == []
    assert len(session_cookies) >= 3  # of the hub, the notebook server and the service


COUNTING_CELL = (
    "import time\nfor number in range(100_000):\n    print(number, flush=True)\n    time.sleep(0.1)"
)


@pytest.fixture(scope="module")
def platform(start_platform: Callable[[], HubPlatform]) -> HubPlatform:
    """Run a platform; the tests kill its hub and proxy."""
    return start_platform()


def test_notebook_kernel_continues_after_kills_of_hub_and_proxy(
    platform: HubPlatform, browser: Browser
) -> None:
    page = browser.new_context().new_page()
    page.set_default_timeout(lab.PATIENCE_MS)
    sign_in(page, platform, "bob")
    lab.start_session(page, platform.url, "½ GPU")
    lab.wait_for_lab(page)
    lab.write_notebook(platform.data_dir / "users" / "bob" / "count.ipynb", [COUNTING_CELL])
    lab.open_notebook(page, platform.url, "bob", "count.ipynb")
    lab.run_all_cells(page)
    new_sockets: list[WebSocket] = []
    page.on("websocket", lambda socket: new_sockets.append(socket))  # noqa: PLW0108 - page.on marks it
    proxy = CaddyProcess(DataDirectory(platform.data_dir).proxy)

    def expect_two_more_numbers() -> None:
        """Wait until the page has shown two more numbers."""
        for _ in range(2):
            before = page.locator(".jp-OutputArea").inner_text()
            expect(page.locator(".jp-OutputArea")).not_to_have_text(before)

    expect_two_more_numbers()
    killed_at = time.monotonic()
    platform.kill()
    expect_two_more_numbers()
    print(f"hub killed: the page counts on, {time.monotonic() - killed_at:.1f} s for two numbers")
    assert httpx.get(f"{platform.url}/user/bob/api").is_success
    hub_reply = httpx.get(f"{platform.url}/hub/home")
    assert hub_reply.status_code == 503
    assert hub_reply.headers["retry-after"] == "1"

    pid = proxy.pid()
    platform.start()
    expect_two_more_numbers()
    print(f"hub back {time.monotonic() - killed_at:.1f} s after the kill")
    assert proxy.pid() == pid
    assert new_sockets == [], "the page did not have to connect again"

    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    eventually(lambda: proxy.pid() not in {None, pid}, what="a new proxy process")
    eventually(lambda: httpx.get(f"{platform.url}/user/bob/api").is_success, what="a reply")
    print(f"proxy back {time.monotonic() - killed_at:.2f} s after the kill")
    expect_two_more_numbers()
    print(f"the page counts on {time.monotonic() - killed_at:.1f} s after the kill")
    assert new_sockets != []
