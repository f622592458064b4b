"""Notes of a supervisor and its subreaper: atomic, ordered, retried until there is room.

On a full or read-only disk, notes wait here, and so do processes that must not end before their
note is written: a job without a readable exit would run again. Standard library only.
"""

import json
import os
import time
from typing import Any

AGAIN_EVERY_S = 1.0


class ExitNotes:
    """Notes of one start, in its directory."""

    def __init__(self, directory: str) -> None:
        """Start empty."""
        self._directory = directory
        self._waiting: list[tuple[str, dict[str, Any]]] = []

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
    """Write a file atomically and durably."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123  pathlib costs memory
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)  # noqa: PTH104
    folder = os.open(os.path.dirname(path), os.O_RDONLY)  # noqa: PTH120
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
