"""The directory of a launcher's job: its lock, the wanted number of workers, and messages.

Beside the protocol's files (`elastic_messages`) it contains the launcher's `lock` and `workers`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from runai.hub_service.wire.elastic_messages import ElasticFiles, MessageError


class DirectoryTaken(RuntimeError):
    """Error: another launcher runs the job of this directory."""


class JobDirectory:
    """A job's directory, locked by one launcher and its workers at a time."""

    def __init__(self, path: Path) -> None:
        """Set the path; nothing is created yet."""
        self.path = path.absolute()
        self.files = ElasticFiles(self.path)
        self._lock = -1

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that workers inherit, so that a live worker keeps the lock."""
        return (self._lock,) if self._lock >= 0 else ()

    def acquire(self, orphans_within_s: float = 120.0) -> int:
        """Lock the directory, clear the last run's messages, and return its last generation.

        Workers of a killed launcher save a checkpoint after their update and exit; this waits for
        them, as they hold the lock until then.

        Raises:
            DirectoryTaken: if a launcher holds the lock, or its workers do not exit in time.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + orphans_within_s
        while not self._try_lock():
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            if holder.isdecimal() and lives(int(holder)):
                raise DirectoryTaken(
                    f"Process {holder} runs the job of {self.path}: resize it "
                    f"(--resize N {self.path}), or name another --directory."
                )
            if time.monotonic() > deadline:
                raise DirectoryTaken(
                    f"Workers of a launcher that is gone still run the job of {self.path}: "
                    "end them, or name another --directory."
                )
            time.sleep(0.1)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self._clear_messages()

    def requested_workers(self, min_workers: int, max_workers: int) -> int | None:
        """Return the workers that a user requested, within bounds; None without a request."""
        try:
            count = int((self.path / "workers").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return min(max(count, min_workers), max_workers)

    def request_workers(self, count: int) -> None:
        """Request a number of workers from this directory's launcher.

        Raises:
            FileNotFoundError: if no job runs here.
            ValueError: if the number is outside of the launcher's bounds.
            MessageError: if its target cannot be read.
        """
        target = self.files.target()
        if target is None:
            raise FileNotFoundError(f"No elastic job runs in {self.path}: there is no target.json.")
        if not target.least <= count <= target.most:
            raise ValueError(
                f"The job in {self.path} runs with {target.least} to {target.most} workers, "
                f"not with {count}."
            )
        partial = self.path / f".workers.{os.getpid()}"
        partial.write_text(f"{count}\n", encoding="utf-8")
        partial.replace(self.path / "workers")

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _clear_messages(self) -> int:
        """Delete the last run's messages; return its generation, 0 if unknown."""
        gen = 0
        with contextlib.suppress(MessageError):
            gen = target.gen if (target := self.files.target()) else 0
        # New workers reuse the old names, and must not read the last run's messages.
        for path in [
            self.files.target_path,
            self.path / "workers",
            *(self.path / "status").glob("*.json"),
        ]:
            path.unlink(missing_ok=True)
        return gen


def lives(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # Signal 0 also succeeds for a zombie.
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return True
