"""What a supervisor and its witness write down: whole, in order, and again until there is room.

On a full disk, or one that has become read-only, notes wait here, and those who must not be gone
before they are written wait with them: a job whose end nobody can read would be run again.
Standard library only, as both are; `attempt` names the files.
"""

import json
import os
import time
from typing import Any

AGAIN_EVERY_S = 1.0


class Notes:
    """The notes of one start, in its directory."""

    def __init__(self, directory: str) -> None:
        """Begin without any."""
        self._directory = directory
        self._waiting: list[tuple[str, dict[str, Any]]] = []

    def tell(self, name: str, content: dict[str, Any]) -> bool:
        """Write a note after those that wait; tell whether it is written."""
        self._waiting.append((name, content))
        return self.again()

    def again(self) -> bool:
        """Write what waits; tell whether nothing waits any more."""
        while self._waiting:
            name, content = self._waiting[0]
            try:
                write_whole(f"{self._directory}/{name}", content)
            except (FileNotFoundError, NotADirectoryError):
                pass  # the directory is gone, and with it whoever would read
            except OSError:
                return False
            del self._waiting[0]
        return True

    def until_written(self) -> None:
        """Return when nothing waits any more."""
        while not self.again():
            time.sleep(AGAIN_EVERY_S)


def write_whole(path: str, content: dict[str, Any]) -> None:
    """Write a file that is there with all its content, or not at all."""
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
