"""A real PostgreSQL server that can be stopped, killed and started again on the same data.

Called by tests of the ledger and of the service, and by benchmarks/recovery.py.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from postgres import ACCOUNT, postgres_server
from waiting import eventually


@dataclass
class RestartedServer:
    """A PostgreSQL server and its processes."""

    address: str
    folder: Path
    command: list[str]
    running: subprocess.Popen[bytes] | None = None

    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def stop(self) -> None:
        """Stop the server at once, in good order."""
        psutil.Process(self.pid()).send_signal(signal.SIGINT)
        self._wait_for_exit()
        eventually(lambda: not (self.folder / "data" / "postmaster.pid").exists(), within=60)

    def kill(self) -> None:
        """Kill the server and all its children, as a power failure does."""
        main = psutil.Process(self.pid())
        main.suspend()  # or it forks one more child while we list them
        victims = [main, *main.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        # Unreaped, a child of ours would be a zombie, which the next server takes for a live one.
        main.wait(60)
        self._wait_for_exit()
        eventually(lambda: not any(_lives(victim) for victim in victims), within=60)

    def start(self) -> None:
        """Start the server again and wait until it answers.

        If it exits at once, retry: the killed server may hold its shared memory a moment longer.
        """
        self._launch()

        def is_there() -> bool:
            if self.running is None or self.running.poll() is not None:
                self._launch()
            return self.answers()

        eventually(is_there, within=60)

    def _launch(self) -> None:
        account = pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
        self.running = subprocess.Popen(
            self.command,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )

    def answers(self) -> bool:
        try:
            psycopg.connect(host=str(self.folder), user="ledger", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _wait_for_exit(self) -> None:
        if self.running is not None:
            self.running.wait(60)
        eventually(lambda: not self.answers(), within=60)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def restarted_server() -> Iterator[RestartedServer]:
    """Yield a server with an empty database; remove it afterwards."""
    with postgres_server(durable=True) as address:
        folder = Path(address.partition("host=")[2])
        server = RestartedServer(address.format("postgres"), folder, [])
        server.command = psutil.Process(server.pid()).cmdline()
        try:
            yield server
        finally:
            if server.running is not None and server.running.poll() is None:
                server.stop()
