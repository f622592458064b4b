"""Who has the cluster of a data directory open: one process at a time, and it says which.

Knows `cluster.lock`. The kernel frees it, whatever ends its holder; what stands in it is told by
whoever held it last. Called by the service, which waits for its turn, and by `runai restore`, which
does not.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from runai.hub_service.errors import Conflict

__all__ = ["LOCK", "RESTORING", "Holder", "check_is_whole", "claim", "holder", "sole_owner"]

LOCK = "cluster.lock"
RESTORING = "restoring.json"
"""There while a backup takes the place of what was there: the one half, and of the other half."""

WAIT_FOR_LOCK_S = 0.2


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has the cluster open."""

    pid: int = 0
    """0: it does not say; an earlier version wrote nothing down."""
    since: float = 0.0

    def __str__(self) -> str:
        """Return half a sentence."""
        if not self.pid:
            return "a process that does not say which"
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid}, since {began}"

    @property
    def way_out(self) -> str:
        """Say how it is ended, were it frozen or not."""
        pid = self.pid or "PID"
        return f"kill -TERM {pid}; of one that is frozen also: kill -CONT {pid}."


@asynccontextmanager
async def sole_owner(path: Path) -> AsyncGenerator[None]:
    """Hold a lock file, waiting for whoever holds it; the kernel frees it if we are killed.

    Raises:
        Conflict: a restoration was interrupted.
    """
    fd = _opened(path)
    try:
        while True:
            if _taken(fd):
                break
            await asyncio.sleep(WAIT_FOR_LOCK_S)  # waiting in the kernel cannot be cancelled
        check_is_whole(path.parent)
        yield
    finally:
        os.close(fd)


def check_is_whole(root: Path) -> None:
    """Make sure that no restoration was interrupted in a data directory.

    Raises:
        Conflict: one was; what is there is partly of the backup, or not there at all.
    """
    if (root / RESTORING).exists():
        raise Conflict(
            f"A restoration was interrupted in {root}.",
            hint="Run the same `runai restore BACKUP` again: it does what is left.",
            code="restoration_interrupted",
        )


def claim(root: Path) -> int:
    """Hold the lock of a data directory from now on; return the open file, which it ends with.

    Raises:
        Conflict: somebody has the cluster open.
    """
    fd = _opened(root / LOCK)
    if _taken(fd):
        return fd
    os.close(fd)
    by = holder(root / LOCK) or Holder()
    raise Conflict(
        f"A service has the cluster of {root} open: {by}.",
        hint=f"Stop its hub, or end it: {by.way_out}",
        code="cluster_open",
    )


def holder(path: Path) -> Holder | None:
    """Return who holds a lock file; None where nobody does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(ValueError, TypeError):
            return Holder(**json.loads(os.pread(fd, 1000, 0)))
        return Holder()
    else:
        return None
    finally:
        os.close(fd)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(OSError):  # a full disk keeps nobody from it
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(Holder(os.getpid(), time.time()))).encode(), 0)
    return True
