"""Complete platforms for benchmarks, started and used through the users' commands and API."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.client import Client


def free_port() -> int:
    """Return an unused TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def seconds_until(condition: Callable[[], bool], within: float = 120) -> float:
    """Return how long it takes until the condition is true."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > within:
            raise TimeoutError(condition)
        time.sleep(0.005)
    return time.perf_counter() - began


def answers(url: str) -> bool:
    """Return True if a page answers with status 200."""
    try:
        return httpx.get(url, timeout=2, verify=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def started(command: list[str], url: str, folder: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Start a hub and return it with the seconds until its page answers."""
    with (folder / "start.log").open("ab") as log:
        hub = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    return hub, seconds_until(lambda: answers(url))


@contextmanager
def simulated(gpus: int) -> Iterator[tuple[str, Path]]:
    """Run a platform with simulated GPUs; yield its root URL and the folder with `data`."""
    with tempfile.TemporaryDirectory(prefix="runai-bench-") as name:
        folder = Path(name)
        port = free_port()
        root = f"http://127.0.0.1:{port}"
        up = [sys.executable, "-m", "runai.embedded", "--simulate", str(gpus), "--port", str(port)]
        up += ["--data-dir", str(folder / "data")]
        hub, _ = started(up, f"{root}/services/runai/health", folder)
        try:
            yield root, folder
        finally:
            stop(hub)


def stop(hub: subprocess.Popen[bytes]) -> None:
    """Stop a hub with SIGINT, like Ctrl-C."""
    hub.send_signal(signal.SIGINT)
    hub.wait(60)
    time.sleep(1)  # the service releases its lock shortly after the hub's end


def as_user(root: str, folder: Path, user: str, project: str) -> Client:
    """Log a user in like `runai login`, and return a client."""
    token = minted_token(root, folder, user)
    return Client(f"{root}/services/runai/", token, default_project=project)


def minted_token(root: str, folder: Path, user: str) -> str:
    """Log a user in, and return a new token."""
    words = (folder / "secrets" / "passwords.txt").read_text().split()
    with HubLogin(f"{root}/") as visit:
        visit.log_in(user, words[words.index(user) + 1])
        return visit.mint_token()
