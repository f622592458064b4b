"""A temporary PostgreSQL server for tests: in a temporary folder, on a Unix socket.

The server refuses to run as root. Used by the ledger's conftest.py, by `capabilities` and by
benchmarks/ledger.py.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ACCOUNT = "nobody"
"""The account of the server if the tests run as root."""

STARTED_WITHIN_S = 60


def find_postgres() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs (Debian's paths), else None."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = shutil.which("initdb")
    folders = [*debian, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((f for f in folders if (f / "postgres").exists() and (f / "initdb").exists()), None)


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdecimal() else 0


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[str]:
    """Yield the SQLAlchemy address of an empty server, with `{}` for a database's name.

    Without `durable`: no fsync, several times faster, and lost with the machine.
    """
    programs = find_postgres()
    assert programs is not None, "mark the test with @pytest.mark.postgresql"
    # Not below pytest's folder: a socket's path may have 107 bytes, and other users cannot enter
    # root's.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        as_account: list[str] = []
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(folder, account.pw_uid, account.pw_gid)
            as_account = [
                "setpriv",
                f"--reuid={account.pw_uid}",
                f"--regid={account.pw_gid}",
                "--clear-groups",
            ]
        data = folder / "data"
        subprocess.run(
            [
                *as_account,
                *(str(programs / "initdb"), "-D", str(data), "-U", "ledger", "-A", "trust", "-N"),
                *("--locale=C.UTF-8", "-E", "UTF8"),
            ],
            check=True,
            capture_output=True,
            cwd="/",
        )
        fast = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off"]
        server = subprocess.Popen(
            [
                *as_account,
                *(str(programs / "postgres"), "-D", str(data), "-k", str(folder)),
                *("-c", "listen_addresses=", *([] if durable else fast)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
        )
        try:
            _wait(server, folder / ".s.PGSQL.5432")
            yield f"postgresql+psycopg://ledger@/{{}}?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # disconnects the remaining clients
            server.communicate(timeout=STARTED_WITHIN_S)


def _wait(server: subprocess.Popen[bytes], socket: Path) -> None:
    import psycopg

    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        try:
            psycopg.connect(host=str(socket.parent), user="ledger", dbname="postgres").close()
        except psycopg.OperationalError:
            if server.poll() is not None:
                break
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("PostgreSQL did not start")
