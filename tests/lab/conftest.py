"""Fixtures of JupyterLab's extension.

service   a real service with five simulated GPUs, for a file's tests; bob is in project vision
server    bob's real notebook server with the extension, in a process of its own; the same
start     a function that starts one more, with other variables
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websocket

import runai.lab
import waiting
from in_process_service import RunningService, running_service
from ports import free_port
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import Client
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

LAB = Path(runai.lab.__file__).parent
PASSWORD = "the-servers-own-token"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    projects = [ProjectSpec("vision", quota=MilliGpu(2500), members=("bob", "eve"))]
    users = [Actor("bob"), Actor("eve")]
    with running_service(tmp_path_factory.mktemp("data"), users, projects, gpus=5) as running:
        yield running


@pytest.fixture
def bob(service: RunningService) -> Iterator[Client]:
    """Yield bob's client; what he submitted is deleted after the test."""
    with Client(service.url, service.tokens["bob"]) as client:
        yield client
        for workload in client.workloads():
            client.delete(workload)
        waiting.eventually(lambda: not client.workloads())


@dataclass(frozen=True)
class NotebookServer:
    """A notebook server, its root folder, and a browser that is logged in."""

    url: str
    root: Path
    browser: httpx.Client
    output: Path

    def post(self, what: str, asked: object, **headers: str) -> httpx.Response:
        """Send a page's request, with the token of its cookie."""
        given = {"X-XSRFToken": self.browser.cookies["_xsrf"], **headers}
        return self.browser.post(f"runai/lab/{what}", json=asked, headers=given)

    def ask(self, what: str, asked: object) -> dict[str, Any]:
        """Return the answer to a page's request."""
        reply = self.post(what, asked)
        assert reply.is_success, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    @contextmanager
    def socket(
        self, what: str, *, cookies: bool = True, **options: Any
    ) -> Iterator[websocket.WebSocket]:
        """Open a websocket as the browser does, for the block."""
        cookie = "; ".join(f"{name}={value}" for name, value in self.browser.cookies.items())
        address = self.url.replace("http", "ws", 1) + f"runai/lab/{what}"
        options.setdefault("origin", self.url.rpartition("/base/")[0])
        opened = websocket.create_connection(
            address, timeout=60, cookie=cookie if cookies else None, **options
        )
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(scope="module")
def server(start: Callable[..., NotebookServer]) -> NotebookServer:
    return start()


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, service: RunningService
) -> Iterator[Callable[..., NotebookServer]]:
    with ExitStack() as started:
        yield lambda **changes: started.enter_context(
            _notebook_server(tmp_path_factory.mktemp("lab"), service, changes)
        )


@contextmanager
def _notebook_server(
    tmp_path: Path, service: RunningService, changes: Mapping[str, str]
) -> Iterator[NotebookServer]:
    """Start a notebook server in the environment of bob's session, with these changes."""
    root, port = tmp_path / "root", free_port()
    root.mkdir()
    url = f"http://127.0.0.1:{port}/base/"
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "JUPYTER_CONFIG_PATH": str(LAB / "etc"),
        "JUPYTER_PATH": str(LAB / "share"),
        "RUNAI_API_URL": service.url,
        "JUPYTERHUB_API_TOKEN": service.tokens["bob"],
        **changes,
    }
    output = tmp_path / "server.log"
    with output.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"),
                *(f"--ServerApp.port={port}", "--ServerApp.base_url=/base/"),
                *(f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={PASSWORD}"),
            ],
            env={name: value for name, value in environment.items() if value},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=url, follow_redirects=True) as browser:

            def is_up() -> bool:
                assert process.poll() is None, output.read_text()
                try:
                    return browser.get("login", params={"token": PASSWORD}).is_success
                except httpx.TransportError:
                    return False

            waiting.eventually(is_up, what="the notebook server answers")
            yield NotebookServer(url, root, browser, output)
    finally:
        process.terminate()
        process.wait()
