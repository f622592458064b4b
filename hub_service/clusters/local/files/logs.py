"""Reader of a worker's output over all its attempts, from the supervisors' files."""

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
    """A position in the output of one worker, which advances with each read."""

    def __init__(self, job_dir: Path, worker: int) -> None:
        """Start at the beginning of the first attempt."""
        self._job_dir = job_dir
        self._worker = worker
        self._place = (0, 0)
        """Attempt and number of the current file."""
        self._offset = 0
        self._line = b""
        """Beginning of an unfinished line."""
        self._end: tuple[tuple[int, int], int] | None = None
        """Last file and the size to read of it; None: read on as it grows."""

    def end_here(self) -> None:
        """End at the current size: a worker may write faster than the client reads."""
        self._end = (0, 0), 0
        for attempt, number, path in reversed(list(self._files())):
            with suppress(FileNotFoundError):  # rotation removes the oldest file
                self._end = (attempt, number), path.stat().st_size
                return

    def skip_to_last(self, lines: int) -> None:
        """Start at the last `lines` lines."""
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
        """Return unread whole lines; None if there are none now."""
        is_there = False
        for attempt, number, path in self._files():
            if (attempt, number) < self._place:
                continue
            if (attempt, number) > self._place:
                # A line may continue in the next file, unless a file in between was rotated away.
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
        """Return an unfinished last line, once no more output can come."""
        if not self._line:
            return None
        line, self._line = self._line, b""
        return LogChunk(self._worker, self._place[0], line + b"\n")

    def _size(self, place: tuple[int, int]) -> int | None:
        """Return the size to read of a file; None: all of it."""
        if self._end is None or place < self._end[0]:
            return None
        return self._end[1] if place == self._end[0] else 0

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield attempt, number and path of the files, oldest first."""
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
    """Return the offset of the last `wanted` lines, and how many there are.

    It reads blocks from the end: a file may be one line, or millions.
    """
    try:
        with path.open("rb") as file:
            end = at = file.seek(0, os.SEEK_END) if size is None else size
            found = -1  # the last newline starts no line
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
                found += 1  # the first line has no newline before it
            return (0, max(0, found)) if wanted else (end, 0)
    except FileNotFoundError:  # rotation removes the oldest file
        return 0, 0


def _block(path: Path, offset: int, size: int | None) -> bytes | None:
    """Return the next block; None if rotation has removed the file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            most = BLOCK_BYTES if size is None else min(BLOCK_BYTES, size - offset)
            return file.read(max(0, most))
    except FileNotFoundError:
        return None
