"""Notes of a supervisor and its subreaper: atomic, ordered, retried until there is room.

The end of a worker has its room on the disk from the start: only when a job's end is known are the
files removed with which it filled the disk. Notes that cannot be written wait here, and so do
processes that must not end before their note is written: a job without a readable exit would run
again. Standard library only.
"""

import contextlib
import json
import os
import time
from typing import Any

AGAIN_EVERY_S = 1.0
ROOM_BYTES = 4096


class ExitNotes:
    """Notes of one start, in its directory."""

    def __init__(self, directory: str) -> None:
        """Start empty."""
        self._directory = directory
        self._waiting: list[tuple[str, dict[str, Any]]] = []

    def reserve(self, *names: str) -> None:
        """Take the room of later notes; on a disk without it they wait."""
        with contextlib.suppress(OSError):
            for name in names:
                fd = _open(f"{self._directory}/{name}")
                try:
                    os.posix_fallocate(fd, 0, ROOM_BYTES)
                finally:
                    os.close(fd)

    def enqueue(self, name: str, content: dict[str, Any]) -> bool:
        """Queue a note; return True if it is written."""
        self._waiting.append((name, content))
        return self.write_queued()

    def write_queued(self) -> bool:
        """Write the queued notes; return True if none is left."""
        while self._waiting:
            name, content = self._waiting[0]
            try:
                write_whole(f"{self._directory}/{name}", content)
            except (FileNotFoundError, NotADirectoryError):
                pass  # the directory is gone, and every reader with it
            except OSError:
                return False
            del self._waiting[0]
        return True

    def until_written(self) -> None:
        """Return when all notes are written."""
        while not self.write_queued():
            time.sleep(AGAIN_EVERY_S)


def write_whole(path: str, content: dict[str, Any]) -> None:
    """Write a file atomically and durably, in its reserved room if it has any."""
    with open(_open(path), "wb") as file:
        file.write(json.dumps(content).encode())
        file.truncate()
        os.fsync(file.fileno())
    os.rename(_temporary(path), path)  # noqa: PTH104
    folder = os.open(os.path.dirname(path), os.O_RDONLY)  # noqa: PTH120
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open(path: str) -> int:
    return os.open(_temporary(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _temporary(path: str) -> str:
    return f"{path}.tmp"
