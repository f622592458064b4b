"""The directory of a job that the launcher runs: who has it, what is wanted, where messages are.

Knows the files that are the launcher's own, beside the protocol's (`elastic_messages`): `lock` and
`workers`. Called by `launcher` and `run`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from runai.hub_service.wire.elastic_messages import ElasticFiles, MessageError


class DirectoryTaken(RuntimeError):
    """Another launcher runs the job of this directory."""


class JobDirectory:
    """A directory, made if it is missing, and held by one launcher and its workers at a time."""

    def __init__(self, path: Path) -> None:
        """Name the directory."""
        self.path = path.absolute()
        self.files = ElasticFiles(self.path)
        self._lock = -1

    @property
    def inherited(self) -> tuple[int, ...]:
        """The open files that workers keep open, so that the directory is taken while one lives."""
        return (self._lock,) if self._lock >= 0 else ()

    def take(self, orphans_within_s: float = 120.0) -> int:
        """Hold the directory, clear what the last run left, and return its last generation.

        Workers whose launcher was killed see that after their update, and leave a checkpoint: they
        are waited for, as the directory is theirs until they are gone.

        Raises:
            DirectoryTaken: if a launcher has it, or its workers do not go.
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
        return self._clear()

    def wanted(self, least: int, most: int) -> int | None:
        """Return how many workers a user asked for, within bounds; None where nobody asked."""
        try:
            count = int((self.path / "workers").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return min(max(count, least), most)

    def want(self, count: int) -> None:
        """Ask the launcher that has this directory for so many workers.

        Raises:
            FileNotFoundError: if no job runs here.
            ValueError: if its launcher was not told to run so many, or so few.
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
        part = self.path / f".workers.{os.getpid()}"
        part.write_text(f"{count}\n", encoding="utf-8")
        part.replace(self.path / "workers")

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _clear(self) -> int:
        gen = 0
        with contextlib.suppress(MessageError):
            gen = target.gen if (target := self.files.target()) else 0
        # New workers bear the old names again: what those were told, and told, is not theirs.
        for path in [
            self.files.target_path,
            self.path / "workers",
            *(self.path / "status").glob("*.json"),
        ]:
            path.unlink(missing_ok=True)
        return gen


def lives(process: int) -> bool:
    """Say whether a process runs; one that ended and that nobody asked after does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie holds no lock of its own accord, but answers to signal 0.
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return True
