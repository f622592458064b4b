"""Lock of a data directory's cluster: one process at a time, named in the file.

The kernel releases `cluster.lock` at any end of its holder; the file's content is the last
holder's. The service waits for the lock, `runai restore` does not.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from runai.hub_service.wire.errors import Conflict

LOG = logging.getLogger("runai.service")

LOCK = "cluster.lock"
HUB_LOCK = "up.lock"
"""Lock of the platform's hub (`runai up`) on the same directory."""
HUB_TOKEN = "secrets/hub_token"  # noqa: S105  a path
"""File of the platform's secret, which a copy and a backup have, too."""
RESTORING = "restoring"
"""Folder of files still to restore; exists while a backup replaces the data."""

WAIT_FOR_LOCK_S = 0.2
MAX_BYTES = 32_768
"""Maximum of a lock file's content: a path may have 4,096 bytes, each six in JSON."""
LOG_AFTER_S = 5.0
"""Seconds before a wait is logged. A service that shuts down in order is gone before."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process that has the cluster open."""

    pid: int = 0
    """0: unknown, since the disk was full."""
    since: float = 0.0
    place: str = ""
    """The data directory's path, which a copy of the directory names, too; "": unknown."""
    inode: int = 0
    """The data directory's inode, which a copy does not share."""

    def __str__(self) -> str:
        """Return half a sentence."""
        if not self.pid:
            return "a process that does not say which"
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid}, since {began}"

    @property
    def stop_hint(self) -> str:
        """Return the commands that end it, stopped or not."""
        pid = self.pid or "PID"
        return f"kill -TERM {pid}; of one that is frozen also: kill -CONT {pid}."

    @property
    def is_frozen(self) -> bool:
        """True if it is stopped (SIGSTOP, a debugger)."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")


@asynccontextmanager
async def sole_owner(path: Path) -> AsyncGenerator[None]:
    """Hold a lock file, after a wait if needed. The kernel releases it after a crash.

    Raises:
        Conflict: a restoration was interrupted.
    """
    fd = _open_lock_file(path)
    try:
        await _acquire(fd, path)
        check_is_whole(path.parent)
        yield
    finally:
        os.close(fd)


def check_is_whole(root: Path) -> None:
    """Check that no restoration was interrupted in a data directory.

    Raises:
        Conflict: one was; the data is partly of the backup, or missing.
    """
    if (root / RESTORING).exists():
        raise Conflict(
            f"A restoration was interrupted in {root}.",
            hint="Run the same `runai restore BACKUP` again: it does what is left.",
            code="restoration_interrupted",
        )


def claim(root: Path) -> int:
    """Lock a data directory without waiting; return the descriptor that holds the lock.

    Raises:
        Conflict: another process has the cluster open.
    """
    fd = _open_lock_file(root / LOCK)
    if _try_acquire(fd, root):
        return fd
    os.close(fd)
    by = holder(root / LOCK) or LockHolder()
    raise Conflict(
        f"A service has the cluster of {root} open: {by}.",
        hint=f"Stop its hub, or end it: {by.stop_hint}",
        code="cluster_open",
    )


def holder(path: Path) -> LockHolder | None:
    """Return the holder of a lock file; None if it is free."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(ValueError, TypeError):
            return LockHolder(**json.loads(os.pread(fd, MAX_BYTES, 0)))
        return LockHolder()
    else:
        return None
    finally:
        os.close(fd)


def last_holder(path: Path) -> LockHolder:
    """Return the process that held a lock file last, or holds it."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return LockHolder(**json.loads(path.read_bytes()))
    return LockHolder()


def waiting_pids(path: Path) -> list[int]:
    """Return the processes that wait for a lock file and are visible to this account."""
    by = holder(path)
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or of another account
            if link.readlink() == path.resolve():
                found.add(int(link.parts[2]))
    return sorted(found - {os.getpid(), by.pid if by else 0})


async def _acquire(fd: int, path: Path) -> None:
    """Wait until the lock is free and take it; log a long wait."""
    began, is_logged = time.monotonic(), False
    while not _try_acquire(fd, path.parent):
        if not is_logged and time.monotonic() - began >= LOG_AFTER_S:
            by = holder(path)
            if by is not None:
                is_logged = True
                LOG.warning("waiting: the cluster is open elsewhere (%s). %s", by, by.stop_hint)
        await asyncio.sleep(WAIT_FOR_LOCK_S)  # a wait in the kernel cannot be cancelled


def _open_lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_acquire(fd: int, root: Path) -> bool:
    """Take the lock and write this process into it; return False if another holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(OSError):  # the lock holds even if the disk is full
        os.ftruncate(fd, 0)
        this_process = LockHolder(os.getpid(), time.time(), str(root), root.stat().st_ino)
        os.pwrite(fd, json.dumps(asdict(this_process)).encode(), 0)
    return True
