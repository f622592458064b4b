"""Read what a worker wrote, over all its attempts, from the files that supervisors write.

Knows the order of the files and where a line ends. Knows nothing of waiting: `cluster` asks again
while somebody follows.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runai.hub_service.model.cluster import LogChunk, cut

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
        self._end: tuple[tuple[int, int], int] | None = None
        """The file with which it ends, and how much of that is read; None: with what comes."""

    def end_here(self) -> None:
        """End with what is there now: who writes faster than anybody reads would have no end."""
        self._end = (0, 0), 0
        for attempt, number, path in reversed(list(self._files())):
            with suppress(FileNotFoundError):  # the oldest goes when there are too many
                self._end = (attempt, number), path.stat().st_size
                return

    def skip_to_last(self, lines: int) -> None:
        """Begin with the last so many lines."""
        missing = lines
        for attempt, number, path in reversed(list(self._files())):
            size = self._size((attempt, number))
            if size == 0:
                continue
            self._place = (attempt, number)
            self._offset, found = _last_lines(path, missing, size)
            missing -= found
            if not missing:
                return

    def next_chunk(self) -> LogChunk | None:
        """Return whole lines that were not read yet; None if there are none now."""
        is_there = False
        for attempt, number, path in self._files():
            if (attempt, number) < self._place:
                continue
            if (attempt, number) > self._place:
                # A line may go on in the next file; not where one has gone in between.
                goes_on = is_there and (attempt, number - 1) == self._place
                if not goes_on and (rest := self.rest()) is not None:
                    return rest
                self._place, self._offset = (attempt, number), 0
            size = self._size(self._place)
            if size == 0:
                break
            is_there = True
            while block := _block(path, self._offset, size):
                self._offset += len(block)
                self._line += block
                lines, self._line = cut(self._line)
                if lines:
                    return LogChunk(self._worker, attempt, lines)
            if block is None and (rest := self.rest()) is not None:
                return rest
        return None

    def rest(self) -> LogChunk | None:
        """Return a last line that has no end, once nothing more can come."""
        if not self._line:
            return None
        line, self._line = self._line, b""
        return LogChunk(self._worker, self._place[0], line + b"\n")

    def _size(self, place: tuple[int, int]) -> int | None:
        """Return how much of a file is read; None: all of it."""
        if self._end is None or place < self._end[0]:
            return None
        return self._end[1] if place == self._end[0] else 0

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


def _last_lines(path: Path, wanted: int, size: int | None) -> tuple[int, int]:
    """Find where the last so many lines begin; give that and how many there are, at most so many.

    Reads blocks from the end: a file may be one line, or millions.
    """
    try:
        with path.open("rb") as file:
            end = at = file.seek(0, os.SEEK_END) if size is None else size
            found = -1  # what ends the last line begins none
            while at > 0:
                begin = max(0, at - BLOCK_BYTES)
                file.seek(begin)
                block = file.read(at - begin)
                if at == end and not block.endswith(b"\n"):
                    found += 1
                place = len(block)
                while (place := block.rfind(b"\n", 0, place)) >= 0:
                    found += 1
                    if found == wanted:
                        return begin + place + 1, wanted
                at = begin
            if end:
                found += 1  # the first line, before which there is nothing
            return (0, max(0, found)) if wanted else (end, 0)
    except FileNotFoundError:  # the oldest file goes when there are too many
        return 0, 0


def _block(path: Path, offset: int, size: int | None) -> bytes | None:
    """Read on; None where the file has gone: the oldest does when there are too many."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            most = BLOCK_BYTES if size is None else min(BLOCK_BYTES, size - offset)
            return file.read(max(0, most))
    except FileNotFoundError:
        return None
