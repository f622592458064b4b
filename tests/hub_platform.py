"""A JupyterHub with the service as processes that tests start, kill and start again.

`runai_up` describes one as users start it. `running_hub` is that with the accounts below, one
simulated GPU and our service `tester`. `users_hub` is JupyterHub alone with the service, for tests
of authorization; `kubernetes_hub` has another with pods. For tests with the marker `hub`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import psutil

from ports import free_port
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadView
from waiting import eventually

START_SECONDS = 180
SPAWN_SECONDS = 180
LOCKED_WITHIN_S = 30
SERVICE_PATH = "/services/runai/"
ACCESS_SCOPE = "access:services!service=runai"
SUBMIT_SCOPE = "custom:runai:submit"
JUPYTERHUB_RUNS = b"JupyterHub is now running"
"""The last words of a start of JupyterHub alone."""
TESTER_TOKEN = "a-token-of-the-tests"
PASSWORD = "not-a-secret-here"
USERS = ("ana", "bo", "cy")
REMOVABLE_USERS = ("dan", "eve", "fay")
SOFT_LIMIT = 5000  # of descriptors at the start; jupyter_server raises one below 4096 itself

TESTER_CONFIG = f"""
c.JupyterHub.services.append({{"name": "tester", "api_token": "{TESTER_TOKEN}"}})
c.JupyterHub.load_roles.append(
    {{
        "name": "tester",
        "services": ["tester"],
        "scopes": ["admin:users", "admin:servers", "tokens"],
    }}
)
"""
"""A service with an admin's rights."""

OWN_CONFIG = f"""{TESTER_CONFIG}
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


class HubApi:
    """Servers of users, by a hub's REST API."""

    http: httpx.Client
    """A client with the rights of an admin."""

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

    def server(self, user: str) -> dict[str, Any]:
        """Return the hub's view of a user's server, empty if there is none."""
        answer = self.http.get(f"/hub/api/users/{user}", params={"include_stopped_servers": 1})
        servers: dict[str, Any] = answer.json().get("servers", {})
        view: dict[str, Any] = servers.get("", {})
        return {} if view.get("stopped") else view


@dataclass
class HubPlatform(HubApi):
    """A platform that tests can kill and start again on the same data directory."""

    data_dir: Path
    port: int
    command: Sequence[str]
    """Arguments of the interpreter."""
    python: Path = Path(sys.executable)
    """Interpreter of all the platform's processes."""
    before: Sequence[str] = ()
    """A command that starts the interpreter."""
    shell: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to our own."""
    hidden: tuple[str, ...] = ("JUPYTERHUB",)
    """The beginnings of our own variables that it does not inherit."""
    cwd: Path | None = None
    root: str = ""
    """URL that users open, if not http://127.0.0.1:PORT."""
    ready: bytes = b"\nOpen http"
    """The log's last words of a start."""
    process: subprocess.Popen[bytes] | None = None
    clients: list[Client] = field(default_factory=list)
    http: httpx.Client = field(init=False)
    """The hub's API with the rights of the service `tester`."""

    def __post_init__(self) -> None:
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"token {TESTER_TOKEN}"},
            timeout=60,
        )

    # -- the platform as a whole

    def start(self) -> None:
        """Start the platform; return once its log has the last words of a start.

        An answer to HTTP is no sign: proxy and notebooks outlive a killed hub.
        """
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(self.hidden)}
        with (self.data_dir / "up.log").open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [*self.before, self.python, *self.command],
                env={**inherited, **self.shell},
                cwd=self.cwd,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        eventually(
            lambda: self._runs() and self.ready in (self.data_dir / "up.log").read_bytes()[begin:],
            within=START_SECONDS,
            what="the platform has started",
        )

    def wait_until_served(self) -> None:
        """Return when hub and service answer."""

        def is_served() -> bool:
            assert self._runs()
            with suppress(httpx.HTTPError):
                return self.http.get(f"{SERVICE_PATH}health", timeout=5).is_success
            return False

        eventually(is_served, within=START_SECONDS, what="hub and service answer")

    def _runs(self) -> bool:
        if (code := self.running.poll()) is not None:
            raise RuntimeError(f"it ended with {code}:\n{self.log()[-4000:]}")
        return True

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """Return the process of JupyterHub: `runai up` becomes it."""
        assert self.process is not None, "not started"
        return self.process

    def service_process(self) -> psutil.Process:
        """Return the service, a child of JupyterHub.

        Raises:
            LookupError: it does not run.
        """
        for child in psutil.Process(self.running.pid).children():
            with suppress(psutil.Error):  # killed, and not reaped yet
                if "runai.hub_service" in child.cmdline():
                    return child
        raise LookupError("the service does not run")

    def kill(self) -> None:
        """Kill the hub as a crash would; its child processes stay."""
        self.running.kill()
        self.running.wait()

    def stop(self) -> None:
        """Stop as Ctrl-C does, then kill the remaining processes (jobs outlive a platform)."""
        for client in self.clients:
            client.close()
        self.running.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(60)
        self.kill()
        self.http.close()
        kill_processes_below(self.data_dir)

    def log(self) -> str:
        """Return the logs of hub and service."""
        return (self.data_dir / "up.log").read_text(errors="replace")

    # -- users

    @property
    def url(self) -> str:
        """Return the URL that users open."""
        return self.root or f"http://127.0.0.1:{self.port}"

    def password(self, user: str) -> str:
        """Return a generated password, from the file that `runai up` names."""
        text = (self.data_dir / "secrets" / "passwords.txt").read_text()
        entry = re.search(rf"^{user}\s+(\S+)$", text, re.MULTILINE)
        assert entry, f"no password of {user} in passwords.txt"
        return entry[1]

    def login_token(self, user: str, password: str = "") -> str:
        """Return a new token by a login, with the generated password, as `runai login` does."""
        with HubLogin(f"{self.url}/") as hub:
            hub.log_in(user, password or self.password(user))
            return hub.mint_token()

    def client(self, user: str) -> Client:
        """Return a client of the service, with a login's token."""
        client = Client(f"{self.url}{SERVICE_PATH}", self.login_token(user))
        self.clients.append(client)
        return client

    def token(self, user: str, *scopes: str) -> str:
        """Return a new token, by default with a member's permissions; create a missing user."""
        self.http.post(f"/hub/api/users/{user}")
        return str(self.request_token(user, *scopes).raise_for_status().json()["token"])

    def request_token(self, user: str, *scopes: str) -> httpx.Response:
        """Return the hub's answer: it refuses scopes that the user lacks."""
        scopes = scopes or (ACCESS_SCOPE, SUBMIT_SCOPE)
        return self.http.post(f"/hub/api/users/{user}/tokens", json={"scopes": scopes})

    def service(self, token: str = "") -> Client:
        """Return a client of the service, by default with the token that it shares with the hub."""
        token = token or DataDirectory(self.data_dir).hub_token()
        return Client(f"{self.http.base_url}{SERVICE_PATH}", token, patience_s=60)

    def call_service(
        self, token: str, path: str, method: str = "GET", **request: Any
    ) -> httpx.Response:
        """Return the service's answer to a request with a token."""
        url, headers = f"{self.url}{SERVICE_PATH}{path}", {"Authorization": f"Bearer {token}"}
        return httpx.request(method, url, headers=headers, timeout=60, **request)

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

    @contextmanager
    def failing_database(self, *, reads: bool) -> Iterator[None]:
        """Make every commit of the hub fail, or (`reads`) every read as well.

        Another process holds SQLite's locks on its database.
        """
        database = self.data_dir / "jupyterhub.sqlite"
        with closing(sqlite3.connect(database, LOCKED_WITHIN_S, isolation_level=None)) as other:
            other.execute(f"BEGIN {'EXCLUSIVE' if reads else 'IMMEDIATE'}")
            try:
                yield
            finally:
                other.execute("ROLLBACK")

    # -- servers

    def stop_all(self) -> None:
        for user in USERS:
            if self.server(user):
                self.stop_server(user)
        eventually(lambda: not self.sessions(), what="no sessions")

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
        with self.service() as client:
            return {
                workload.user: workload
                for workload in client.workloads()
                if workload.kind == "session"
                and workload.state not in {"ended", "failed", "succeeded"}
            }

    def holds(self) -> dict[str, float]:
        """Return the GPUs allocated to each user's session."""
        return {user: session.allocated for user, session in self.sessions().items()}


def runai_up(
    data_dir: Path,
    *options: str,
    simulated: int | None = 5,
    port: int = 0,
    **fields: Any,
) -> HubPlatform:
    """Return a platform that `runai up` starts; `simulated=None`: the machine's devices."""
    port = port or free_port()
    gpus = () if simulated is None else ("--simulate", str(simulated))
    place = ("--port", str(port), "--data-dir", str(data_dir))
    command = ["-m", "runai.hub_service.cli", "up", *place, *gpus, *options]
    return HubPlatform(data_dir, port, command, **fields)


def one_gpu_platform(data_dir: Path, *options: str, **fields: Any) -> HubPlatform:
    """Return a platform with one simulated GPU, a soft limit and the data directory's projects."""
    before = ("sh", "-c", f'ulimit -Sn {SOFT_LIMIT}; exec "$@"', "up")
    projects = ("--projects", str(data_dir / "projects.yaml"))
    return runai_up(data_dir, *projects, *options, simulated=1, before=before, **fields)


@contextmanager
def running_hub(
    data_dir: Path, admins_lines: str = "", shell: Mapping[str, str] | None = None
) -> Iterator[HubPlatform]:
    """Run a platform for the block, with these lines before ours; remove what it started.

    ana, bo and cy are members of vision (quota 1), and so are dan, eve and fay; tests may remove
    the last three accounts.
    """
    directory = DataDirectory(data_dir)
    directory.prepare(system_users=False)
    for user in USERS + REMOVABLE_USERS:
        Accounts(directory).add(user, PASSWORD)
    (data_dir / "jupyterhub_config.py").write_text(f"{admins_lines}{OWN_CONFIG}")
    (data_dir / "projects.yaml").write_text(PROJECTS)
    platform = one_gpu_platform(data_dir, shell=shell or {})
    try:
        platform.start()
        for user in USERS + REMOVABLE_USERS:
            platform.http.post(f"/hub/api/users/{user}").raise_for_status()
        yield platform
    finally:
        platform.stop()
        for link in data_dir.glob("tmp-*"):  # a killed hub leaves what the next start would remove
            rmtree(link.readlink(), ignore_errors=True)


def kill_processes_below(data_dir: Path) -> None:
    """Kill every process of this data directory; jobs outlive the platform on purpose."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.pid != os.getpid() and any(str(data_dir) in word for word in words):
                process.kill()
