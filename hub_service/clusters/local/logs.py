"""Read what a worker wrote, over all its attempts, from the files that supervisors write.

Knows the order of the files and where a line ends. Knows nothing of waiting: `cluster` asks again
while somebody follows.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from runai.hub_service.clusters.base import LogChunk

__all__ = ["WorkerLog"]

BLOCK_BYTES = 256 * 1024

_ATTEMPT = re.compile(r"attempt-(\d+)")
_SEGMENT = re.compile(r"log-(\d+)\.txt")


class WorkerLog:
    """A place in the output of one worker, which moves on as it is read."""

    def __init__(self, job_dir: Path, worker: int) -> None:
        """Begin at the beginning of the first attempt."""
        self._job_dir = job_dir
        self._worker = worker
        self._place = (0, 0)
        """Attempt and number of the file that is being read."""
        self._offset = 0
        self._line = b""
        """The beginning of a line whose end is not there yet."""

    def skip_to_last(self, lines: int) -> None:
        """Begin with the last so many lines."""
        missing = lines
        for attempt, number, path in reversed(list(self._files())):
            content = _content(path)
            found = content.splitlines(keepends=True)
            self._place = (attempt, number)
            if len(found) >= missing:
                self._offset = len(content) - sum(len(line) for line in found[-missing:] if missing)
                return
            self._offset = 0
            missing -= len(found)

    def next_chunk(self) -> LogChunk | None:
        """Return whole lines that were not read yet; None if there are none now."""
        for attempt, number, path in self._files():
            if (attempt, number) < self._place:
                continue
            if (attempt, number) > self._place:
                if attempt > self._place[0] and (rest := self.rest()) is not None:
                    return rest
                self._place, self._offset = (attempt, number), 0
            while block := _block(path, self._offset):
                self._offset += len(block)
                self._line += block
                end = self._line.rfind(b"\n") + 1
                if end:
                    lines, self._line = self._line[:end], self._line[end:]
                    return LogChunk(self._worker, attempt, lines)
        return None

    def rest(self) -> LogChunk | None:
        """Return a last line that has no end, once nothing more can come."""
        if not self._line:
            return None
        line, self._line = self._line, b""
        return LogChunk(self._worker, self._place[0], line + b"\n")

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Return attempt, number and path of the files, oldest first."""
        for attempt, folder in _numbered(self._job_dir, _ATTEMPT):
            for number, path in _numbered(folder / f"worker-{self._worker}", _SEGMENT):
                yield attempt, number, path


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        matches = [(name.fullmatch(path.name), path) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), path) for match, path in matches if match)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the oldest file goes when there are too many
        return b""


def _block(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(BLOCK_BYTES)
    except FileNotFoundError:
        return b""
