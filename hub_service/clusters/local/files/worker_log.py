"""Reader of a worker's output over all its attempts, from the supervisors' files."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from runai.hub_service.model.cluster import MAX_LINE_BYTES, LineCutter, LogChunk
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.program_schemas import MissingOutput

BLOCK_BYTES = 256 * 1024

_ATTEMPT = re.compile(r"attempt-(\d+)")
_SEGMENT = re.compile(r"log-(\d+)(?:-(\d+)-(\d+)(\+?))?\.txt")

Place = tuple[int, int]
"""Attempt and number of a file."""


class _File(NamedTuple):
    """One file of an attempt's output, by its name (`supervisor.py`)."""

    place: Place
    path: Path
    before: tuple[int, int] | None
    """Lines and bytes of the attempt before it; None: not known, as of an older supervisor."""
    begins_line: bool


class WorkerLog:
    """A position in the output of one worker, which advances with each read."""

    def __init__(self, job_dir: Path, worker: int, *, parts: bool = False) -> None:
        """Start at the beginning of the first attempt; `parts` reads unfinished lines too."""
        self._job_dir = job_dir
        self._worker = worker
        self._parts = parts
        self._place: Place = (0, 0)
        """The current file."""
        self._offset = 0
        self._lines = self._bytes = 0
        """Ends of lines, and bytes, of the attempt up to the position."""
        self._cutter = LineCutter()
        self._gap: tuple[int, int] | None = None
        """Lines and bytes at the beginning of output that is missing; None: none is."""
        self._is_position_known = True
        self._to_skip = 0
        """Maximum bytes of a line without its beginning, which are skipped."""
        self._end: tuple[Place, int] | None = None
        """Last file and the size to read of it; None: read on as it grows."""

    def end_here(self) -> None:
        """End at the current size: a worker may write faster than the client reads."""
        self._end = (0, 0), 0
        for file in reversed(list(self._files())):
            with suppress(FileNotFoundError):  # rotation removes old files
                self._end = file.place, file.path.stat().st_size
                return

    def skip_to_last(self, lines: int) -> None:
        """Start at the last `lines` lines."""
        missing = lines
        for file in reversed(list(self._files())):
            size = self._size(file.place)
            if size == 0:
                continue
            offset, found = _last_lines(file, missing, size)
            missing -= found
            if not missing:
                self._place, self._offset = file.place, offset
                self._lines, self._bytes = file.before or (0, 0)
                self._lines += _count_lines(file.path, offset)
                self._bytes += offset
                return

    def next_chunk(self) -> LogChunk | None:
        """Return unread lines, or the size of missing ones; None if there are none now."""
        chunk = self._next_lines()
        if chunk is None and self._parts and self._gap is None and (part := self._cutter.part()):
            return LogChunk(self._worker, self._place[0], part, is_part=True)
        return chunk

    def _next_lines(self) -> LogChunk | None:
        """Return whole unread lines, or a gap; None if there are none now."""
        was_read = False
        for file in self._files():
            if file.place < self._place:
                continue
            size = self._size(file.place)
            if file.place > self._place:
                if size == 0 and self._end is not None and self._end <= (self._place, self._offset):
                    break
                if file.place[0] > self._place[0]:
                    if (rest := self.rest()) is not None:
                        return rest
                    self._place, self._lines, self._bytes = (file.place[0], 0), 0, 0
                self._enter(file, was_read=was_read)
            if size == 0:
                break
            while block := _read_block(file.path, self._offset, size):
                if self._to_skip:
                    self._skip(block)
                elif self._gap is not None:
                    return self._take_gap()
                else:
                    self._advance(block)
                    if lines := self._cutter.feed(block):
                        return LogChunk(self._worker, file.place[0], lines)
            was_read = block is not None
        return None

    def rest(self) -> LogChunk | None:
        """Return missing output or an unfinished last line, once no more output can come."""
        if self._gap is not None:
            return self._take_gap()
        rest = self._cutter.rest()
        return LogChunk(self._worker, self._place[0], rest) if rest else None

    def _enter(self, file: _File, *, was_read: bool) -> None:
        """Move to the beginning of a file; note a gap if output before it was not read."""
        if file.before is not None:
            continues = self._bytes == file.before[1]
        else:
            continues = file.place[1] == self._place[1] + 1 and (was_read or file.place[1] == 1)
        if not continues:
            if self._gap is None:
                self._gap = self._lines, self._bytes - len(self._cutter.unread)
            # Neither half of a torn line looks like a line of the program.
            self._cutter.drop()
            self._to_skip = 0 if file.begins_line else MAX_LINE_BYTES
        self._place, self._offset = file.place, 0
        self._is_position_known = file.before is not None
        self._lines, self._bytes = file.before or (0, 0)

    def _skip(self, block: bytes) -> None:
        """Pass over the rest of a line without its beginning."""
        end = block.find(b"\n", 0, self._to_skip) + 1
        block = block[: end or self._to_skip]
        self._to_skip = 0 if end else self._to_skip - len(block)
        self._advance(block)

    def _advance(self, block: bytes) -> None:
        """Move the position behind a block."""
        self._offset += len(block)
        self._bytes += len(block)
        self._lines += block.count(b"\n")

    def _take_gap(self) -> LogChunk:
        """Return the gap as a chunk, and clear it."""
        lines, begin = self._gap or (0, 0)
        self._gap, self._to_skip = None, 0
        missing = MissingOutput()
        if self._is_position_known:
            missing = MissingOutput(lines=self._lines - lines, bytes=self._bytes - begin)
        return LogChunk(self._worker, self._place[0], b"", missing)

    def _size(self, place: Place) -> int | None:
        """Return the size to read of a file; None: all of it."""
        if self._end is None or place < self._end[0]:
            return None
        return self._end[1] if place == self._end[0] else 0

    def _files(self) -> Iterator[_File]:
        """Yield the files, oldest first."""
        for attempt, folder, _ in _numbered(self._job_dir, _ATTEMPT):
            worker = folder / f"worker-{self._worker}"
            for number, path, match in _numbered(worker, _SEGMENT):
                before = None if number > 1 else (0, 0)
                if match[2]:
                    before = int(match[2]), int(match[3])
                yield _File((attempt, number), path, before, not match[4])


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path, re.Match[str]]]:
    """Return the entries of a folder with matching names, by the number in the name."""
    try:
        matches = [(name.fullmatch(path.name), path) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    entries = [(int(match[1]), path, match) for match, path in matches if match]
    return sorted(entries, key=lambda entry: entry[0])


def _count_lines(path: Path, size: int) -> int:
    """Return the ends of lines in the first `size` bytes."""
    offset = lines = 0
    while block := _read_block(path, offset, size):
        offset += len(block)
        lines += block.count(b"\n")
    return lines


def _last_lines(file: _File, count: int, size: int | None) -> tuple[int, int]:
    """Return the offset of the last `count` lines, and how many there are.

    It reads blocks from the end: a file may be one line, or millions.
    """
    try:
        with file.path.open("rb") as opened:
            end = at = opened.seek(0, os.SEEK_END) if size is None else size
            found = -1  # the last newline starts no line
            while at > 0:
                begin = max(0, at - BLOCK_BYTES)
                opened.seek(begin)
                block = opened.read(at - begin)
                if at == end and not block.endswith(b"\n"):
                    found += 1
                place = len(block)
                while (place := block.rfind(b"\n", 0, place)) >= 0:
                    found += 1
                    if found == count:
                        return begin + place + 1, count
                at = begin
            if end and file.begins_line:
                found += 1  # the first line has no newline before it
            return (0, max(0, found)) if count else (end, 0)
    except FileNotFoundError:  # rotation removes old files
        return 0, 0


def _read_block(path: Path, offset: int, size: int | None) -> bytes | None:
    """Return the next block; None if rotation has removed the file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            max_bytes = BLOCK_BYTES if size is None else min(BLOCK_BYTES, size - offset)
            return file.read(max(0, max_bytes))
    except FileNotFoundError:
        return None


def chosen_workers(record: WorkloadRecord, worker: int | None) -> Sequence[int]:
    """Return the index of one worker, or all indices; raise NotFound if there is no such worker."""
    indexes = range(len(record.workers))
    if worker is None or worker in indexes:
        return indexes if worker is None else [worker]
    raise NotFound(
        f"{record.id} has no worker {worker}.",
        hint=f"Its workers are numbered from 0 to {len(indexes) - 1}.",
    )
