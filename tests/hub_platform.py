"""A real platform for tests: `runai up` on a data directory, driven over JupyterHub's REST API.

One simulated GPU. ana, bo and cy are members of vision (quota 1), and so are dan, eve and fay;
tests may remove the last three accounts. The data directory's own jupyterhub_config.py adds a
service `tester` with an admin's rights. For tests with the marker `hub`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar

import httpx
import psutil

from ports import free_port
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadView
from waiting import eventually

START_SECONDS = 180
SPAWN_SECONDS = 180
TESTER_TOKEN = "a-token-of-the-tests"
PASSWORD = "not-a-secret-here"
USERS = ("ana", "bo", "cy")
REMOVABLE_USERS = ("dan", "eve", "fay")
SOFT_LIMIT = 5000  # of descriptors at the start; jupyter_server raises one below 4096 itself

OWN_CONFIG = f"""
c.JupyterHub.services.append({{"name": "tester", "api_token": "{TESTER_TOKEN}"}})
c.JupyterHub.load_roles.append(
    {{
        "name": "tester",
        "services": ["tester"],
        "scopes": ["admin:users", "admin:servers", "tokens"],
    }}
)
# A locked database is an error at once, not after five seconds.
c.JupyterHub.db_kwargs = {{"connect_args": {{"check_same_thread": False, "timeout": 0.1}}}}
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 1}}
# A real single-user server, but without JupyterLab's extensions: half the time to start.
c.Spawner.environment = {{
    "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
    "JUPYTER_NO_CONFIG": "1",
}}
"""

PROJECTS = f"""
projects:
  vision:
    quota: 1
    members: [{", ".join(USERS + REMOVABLE_USERS)}]
"""


@dataclass
class HubPlatform:
    """A platform that tests can kill and start again on the same data directory."""

    READY: ClassVar = b"\nOpen http"
    """The log's last words of a start."""

    data_dir: Path
    port: int
    shell: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to our own."""
    options: Sequence[str] = ()
    """Further options of `runai up`."""
    process: subprocess.Popen[bytes] | None = None
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"token {TESTER_TOKEN}"},
            timeout=60,
        )

    # -- the platform as a whole

    def start(self) -> None:
        command = [
            *("sh", "-c", f'ulimit -Sn {SOFT_LIMIT}; exec "$@"', "up"),
            *(sys.executable, "-m", "runai.embedded"),
            *("--port", str(self.port), "--data-dir", str(self.data_dir), "--simulate", "1"),
            *("--projects", str(self.data_dir / "projects.yaml")),
            *self.options,
        ]
        with (self.data_dir / "up.log").open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **self.shell},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.wait_for_start(begin)

    def kill(self) -> None:
        """Kill the hub as a crash would; its child processes stay."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop as Ctrl-C does, then kill the remaining processes."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()
        self.http.close()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and str(self.data_dir) in process.environ().get(
                    "RUNAI_DATA_DIR", process.environ().get("HOME", "")
                ):
                    process.kill()

    def wait_for_start(self, begin: int) -> None:
        """Return once the log, from offset `begin` on, has the last words of a start.

        An answer to HTTP is no sign: proxy and notebooks outlive a killed hub.
        """
        log = self.data_dir / "up.log"

        def started() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"no start:\n{log.read_text(errors='replace')[-4000:]}")
            return self.READY in log.read_bytes()[begin:]

        eventually(started, within=START_SECONDS, what="the platform has started")

    def token(self, user: str) -> str:
        """Return a new token with a member's permissions."""
        scopes = ["access:services!service=runai", "custom:runai:submit"]
        reply = self.http.post(f"/hub/api/users/{user}/tokens", json={"scopes": scopes})
        return str(reply.raise_for_status().json()["token"])

    @contextmanager
    def browser(self, user: str) -> Iterator[httpx.Client]:
        """Log in by the form, as a user does; every request carries the page's XSRF token."""
        with httpx.Client(
            base_url=self.http.base_url, follow_redirects=True, timeout=60
        ) as browser:
            browser.get("/hub/login")
            login = {"username": user, "password": PASSWORD, "_xsrf": browser.cookies["_xsrf"]}
            arrived = browser.post("/hub/login", data=login)
            assert "/hub/login" not in str(arrived.url)
            browser.headers["X-XSRFToken"] = browser.cookies["_xsrf"]
            yield browser

    # -- servers

    def spawn(self, user: str, **options: object) -> httpx.Response:
        """Request a server; return the hub's answer within a second or so."""
        # JupyterHub 6 would also take {"user_options": …}; 5 takes only the options themselves.
        return self.http.post(f"/hub/api/users/{user}/server", json=options)

    def start_server(self, user: str, **options: object) -> None:
        """Request a server and return when it is ready."""
        self.spawn(user, **options).raise_for_status()
        self.wait_ready(user)

    def wait_ready(self, user: str) -> None:
        eventually(lambda: self.server(user).get("ready"), within=SPAWN_SECONDS, what=f"{user}'s")

    def stop_server(self, user: str) -> None:
        self.http.delete(f"/hub/api/users/{user}/server")
        eventually(lambda: not self.server(user), within=SPAWN_SECONDS, what=f"{user} stopped")

    def stop_all(self) -> None:
        for user in USERS:
            if self.server(user):
                self.stop_server(user)
        eventually(lambda: not self.sessions(), what="no sessions")

    def server(self, user: str) -> dict[str, Any]:
        """Return the hub's view of a user's server, empty if there is none."""
        answer = self.http.get(f"/hub/api/users/{user}", params={"include_stopped_servers": 1})
        servers: dict[str, Any] = answer.json().get("servers", {})
        view: dict[str, Any] = servers.get("", {})
        return {} if view.get("stopped") else view

    def environment(self, user: str) -> dict[str, str]:
        """Return the environment that a user's server was started with."""
        return psutil.Process(self.pid(user)).environ()

    def pid(self, user: str) -> int:
        """Return the pid of a user's server: the process with the user's home."""
        home = str(DataDirectory(self.data_dir).users / user)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.environ().get("HOME") == home
                    and "jupyterhub.singleuser" in process.cmdline()
                ):
                    return process.pid
        raise LookupError(f"{user} has no server process")

    @contextmanager
    def progress(self, user: str, server: str = "") -> Iterator[list[dict[str, Any]]]:
        """Stream the progress of a start, as the waiting page does; the list grows meanwhile."""
        events: list[dict[str, Any]] = []

        def listen() -> None:
            place = f"servers/{server}" if server else "server"
            url = f"/hub/api/users/{user}/{place}/progress"
            with suppress(httpx.HTTPError), self.http.stream("GET", url, timeout=120) as stream:
                events.extend(
                    json.loads(line.removeprefix("data: "))
                    for line in stream.iter_lines()
                    if line.startswith("data: ")
                )

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield events
        thread.join(SPAWN_SECONDS)

    # -- what the service knows

    def sessions(self) -> dict[str, WorkloadView]:
        """Return the sessions that hold or request GPUs, by user; no jobs."""
        token = DataDirectory(self.data_dir).hub_token()
        with Client(f"{self.http.base_url}/services/runai/", token, patience_s=60) as client:
            return {
                workload.user: workload
                for workload in client.workloads()
                if workload.kind == "session"
                and workload.state not in {"ended", "failed", "succeeded"}
            }

    def holds(self) -> dict[str, float]:
        """Return the GPUs allocated to each user's session."""
        return {user: session.allocated for user, session in self.sessions().items()}


@contextmanager
def running_hub(
    data_dir: Path, admins_lines: str = "", shell: Mapping[str, str] | None = None
) -> Iterator[HubPlatform]:
    """Run a platform for the block, with these lines before ours; remove what it started."""
    directory = DataDirectory(data_dir)
    directory.prepare(system_users=False)
    for user in USERS + REMOVABLE_USERS:
        Accounts(directory).add(user, PASSWORD)
    (data_dir / "jupyterhub_config.py").write_text(f"{admins_lines}{OWN_CONFIG}")
    (data_dir / "projects.yaml").write_text(PROJECTS)
    platform = HubPlatform(data_dir, free_port(), shell or {})
    try:
        platform.start()
        for user in USERS + REMOVABLE_USERS:
            platform.http.post(f"/hub/api/users/{user}").raise_for_status()
        yield platform
    finally:
        platform.stop()
        for link in data_dir.glob("tmp-*"):  # a killed hub leaves what the next start would remove
            rmtree(link.readlink(), ignore_errors=True)
