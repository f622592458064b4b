"""A platform started by `runai up`: its processes, its accounts, its end.

Used by the fixtures of this folder and by tests that kill parts of it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from ports import free_port
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.client import Client
from waiting import eventually

START_TIMEOUT_S = 180


@dataclass
class Platform:
    """A platform of simulated GPUs in its own data directory; can be killed and restarted."""

    data_dir: Path
    simulated: int | None = 5
    """None: the machine's devices, or its fake ones."""
    python: Path = Path(sys.executable)
    """Interpreter of all the platform's processes."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to our own."""
    options: Sequence[str] = ()
    """More options of `runai up`."""
    root: str = ""
    """URL that users open, if not http://127.0.0.1:PORT."""
    port: int = field(default_factory=free_port)
    clients: list[Client] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run `runai up` and return when hub and service answer."""
        command = [
            *(str(self.python), "-m", "runai.hub_service.cli", "up"),
            *("--port", str(self.port), "--data-dir", str(self.data_dir)),
            *(() if self.simulated is None else ("--simulate", str(self.simulated))),
            *self.options,
        ]
        with (self.data_dir / "up.log").open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # A reply proves nothing: the proxy outlives a killed hub.
        log_file = self.data_dir / "up.log"
        eventually(
            lambda: self._runs() and b"\nOpen http" in log_file.read_bytes()[begin:],
            within=START_TIMEOUT_S,
            what="the platform has started",
        )

    def wait_until_served(self) -> None:
        """Return when hub and service answer."""
        eventually(self._serves, within=START_TIMEOUT_S, what="hub and service answer")

    def _runs(self) -> bool:
        if self.running.poll() is not None:
            log = (self.data_dir / "up.log").read_text(errors="replace")
            message = f"`runai up` ended with {self.running.returncode}:\n{log[-4000:]}"
            raise RuntimeError(message)
        return True

    def _serves(self) -> bool:
        assert self._runs()
        with suppress(httpx.HTTPError):
            reply = httpx.get(f"{self.url}/services/runai/health", timeout=5)
            return reply.status_code == httpx.codes.OK
        return False

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """Return the process of JupyterHub: `runai up` becomes it."""
        assert self.process is not None, "not started"
        return self.process

    @property
    def url(self) -> str:
        """Return the URL that users open."""
        return self.root or f"http://127.0.0.1:{self.port}"

    def password(self, user: str) -> str:
        """Return the generated password, from the file that `runai up` names."""
        text = (self.data_dir / "secrets" / "passwords.txt").read_text()
        entry = re.search(rf"^{user}\s+(\S+)$", text, re.MULTILINE)
        assert entry, f"no password of {user} in passwords.txt"
        return entry[1]

    def service_process(self) -> psutil.Process:
        """Return the hub service, a child of JupyterHub."""
        for child in psutil.Process(self.running.pid).children():
            with suppress(psutil.Error):  # killed, and not reaped yet
                if "runai.hub_service" in " ".join(child.cmdline()):
                    return child
        message = "the hub service does not run"
        raise LookupError(message)

    def client(self, user: str) -> Client:
        """Return a client that signed in by password, as `runai login` does."""
        with HubLogin(f"{self.url}/") as hub:
            hub.log_in(user, self.password(user))
            token = hub.mint_token()
        client = Client(f"{self.url}/services/runai/", token)
        self.clients.append(client)
        return client

    def end_servers(self, *users: str) -> None:
        """Stop these users' notebook servers, as an admin does; return when they have ended."""
        with HubLogin(f"{self.url}/") as hub:
            hub.log_in("admin", self.password("admin"))
            hub._send("GET", "hub/token")  # renews the token against forged requests
            headers = {"X-XSRFToken": hub._xsrf()}
            for user in users:
                path = f"hub/api/users/{user}"
                hub._send("DELETE", f"{path}/server", headers=headers)

                def has_no_server(path: str = path) -> bool:
                    return not hub._send("GET", path).json().get("servers")

                eventually(has_no_server, within=START_TIMEOUT_S, what=f"{user} has no server")

    def kill(self) -> None:
        """Kill the hub at once, like a crash."""
        self.running.kill()
        self.running.wait()

    def stop(self) -> None:
        """End the platform as Ctrl-C does, then its remaining processes (jobs outlive it)."""
        for client in self.clients:
            client.close()
        self.running.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(60)
        self.running.kill()
        self.running.wait()
        kill_processes_below(self.data_dir)


def kill_processes_below(data_dir: Path) -> None:
    """Kill every process of this data directory; jobs outlive the platform on purpose."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.pid != os.getpid() and any(str(data_dir) in word for word in words):
                process.kill()
