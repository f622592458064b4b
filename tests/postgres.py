"""A temporary PostgreSQL server for tests: in a temporary folder, on a Unix socket.

It can be stopped, killed and started again on the same data. The server refuses to run as root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from waiting import eventually

ACCOUNT = "nobody"
"""The account of the server if the tests run as root."""
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
"""Several times faster, and lost with the machine."""
on_each_database = pytest.mark.parametrize(
    "new_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
"""For tests of dialects of SQL (rows, transactions, locks, migrations); else SQLite is enough."""


def find_postgres() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs (Debian's paths), else None."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = shutil.which("initdb")
    folders = [*debian, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((f for f in folders if (f / "postgres").exists() and (f / "initdb").exists()), None)


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdecimal() else 0


@dataclass
class PostgresServer:
    """A server and its process; a superuser `ledger` needs no password."""

    folder: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return the SQLAlchemy address of its first database."""
        return self.address_of("postgres")

    def address_of(self, database: str) -> str:
        """Return the SQLAlchemy address of a database."""
        return f"postgresql+psycopg://ledger@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start the server and return when it answers.

        If it exits at once, retry: a killed server may hold its shared memory a moment longer.
        """

        def is_there() -> bool:
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    self.command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    **_as_account(),
                )
            return self.answers()

        eventually(is_there, within=60, what="PostgreSQL answers")

    def stop(self) -> None:
        """Stop the server in good order; it disconnects the remaining clients."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def kill(self) -> None:
        """Kill the server and all its children, as a power failure does."""
        assert self.process is not None
        main = psutil.Process(self.process.pid)
        main.suspend()  # or it forks one more child while we list them
        victims = main.children(recursive=True)
        self.process.kill()
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        self.process.wait(60)
        eventually(lambda: not any(map(_lives, victims)), within=60)

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=str(self.folder), user="ledger", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Run a server with an empty database for the block; remove it afterwards."""
    programs = find_postgres()
    assert programs is not None, "mark the test with @pytest.mark.postgresql"
    # Not below pytest's folder: a socket's path may have 107 bytes, and other users cannot enter
    # root's.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:
        folder, data = Path(name), Path(name) / "data"
        account = _as_account()
        if "user" in account:
            os.chown(folder, account["user"], account["group"])
        initdb = [str(programs / "initdb"), "-D", str(data), "-U", "ledger", "-A", "trust", "-N"]
        options = ["--locale=C.UTF-8", "-E", "UTF8"]
        subprocess.run([*initdb, *options], check=True, capture_output=True, **account)
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(folder)]
        command += ["-c", "listen_addresses=", *(() if durable else FAST)]
        server = PostgresServer(folder, command)
        try:
            server.start()
            yield server
        finally:
            if server.process is not None and server.process.poll() is None:
                server.stop()


def _as_account() -> dict[str, Any]:
    """Return arguments of `subprocess` for a server's program."""
    if os.geteuid() != 0:
        return {"cwd": "/"}
    account = pwd.getpwnam(ACCOUNT)
    ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return {"cwd": "/", **ids}


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
