"""Count of a worker's files in its own directory, in a process beside it.

A disk may hang, and only its user may read a home: so a separate process counts, with the worker's
account, and the supervisor does not wait for it. Standard library only, like all of the
supervisor's program (`subreaper.py`).
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import worker_start
else:
    import worker_start  # in the subreaper's program, which extends sys.path

LOOK_EVERY_S = 5.0
REST = 50
"""Pause after a count, as a multiple of its duration."""
FULL_COUNT_EVERY_S = 60.0
"""Seconds between full counts: other users may remove as many files as a worker creates."""
NICE = 10


class FileCount:
    """Periodic count; `is_exceeded` is True once the limit was exceeded."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Read the limit from the instructions; without one it never counts."""
        self.max_files: int = spec["most_files"]
        self.is_exceeded = False
        self.pid = 0
        """The counting process, which is none of the worker's."""
        self._spec = spec
        self._directory: str = spec["own_directory"]
        self._next_count = time.monotonic() + LOOK_EVERY_S
        self._started_at = 0.0
        self._answer_fd = -1
        # Upper bound of the worker's files: the last count and the disk's growth since.
        self._file_count, self._disk_files = 0, 0
        self._full_count_at = self._next_count

    def poll(self) -> bool:
        """Start a count when it is due; read a finished one, and return True then."""
        if self._answer_fd >= 0:
            return self._read_count()
        if self._directory and self.max_files and time.monotonic() >= self._next_count:
            self._start_count()
        return False

    def _start_count(self) -> None:
        """Start a counting process, unless the machine has none to spare."""
        self._started_at = time.monotonic()
        parent = os.getpid()
        try:
            self._answer_fd, answer_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._next_count = self._started_at + LOOK_EVERY_S
            return
        # Without a process on the machine there is no answer, as after a killed one.
        with contextlib.suppress(OSError):
            self.pid = os.fork()
            if self.pid == 0:
                self._count_in_child(answer_write, parent)
        os.close(answer_write)

    def _read_count(self) -> bool:
        """Read the answer of the counting process; return True if it has ended."""
        try:
            fields = os.read(self._answer_fd, 100).split()
        except BlockingIOError:
            return False
        os.close(self._answer_fd)
        self._answer_fd, self.pid = -1, 0
        now = time.monotonic()
        self._next_count = max(
            self._started_at + LOOK_EVERY_S, now + REST * (now - self._started_at)
        )
        if len(fields) == 3:
            self._file_count, self._disk_files, is_full = map(int, fields)
            self._full_count_at = now if is_full else self._full_count_at
            self.is_exceeded = self._file_count > self.max_files
        return True

    def _count_in_child(self, answer_fd: int, parent: int) -> None:
        """Count in the forked process; never returns."""
        try:
            worker_start.set_signals_right()
            worker_start.change_account(self._spec)
            worker_start.die_with(parent)
            os.nice(NICE)
            disk = os.statvfs(self._directory)
            disk_files = disk.f_files - disk.f_ffree  # 0 if the file system does not count them
            count, disk_files_before = self._file_count, self._disk_files
            # The disk's own count, of all users' files, tells whether a full count is needed.
            is_full = (
                not disk_files
                or not disk_files_before
                or count + disk_files - disk_files_before > self.max_files
            )
            if is_full := is_full or self._started_at > self._full_count_at + FULL_COUNT_EVERY_S:
                count, disk_files_before = count_files(self._directory, self.max_files), disk_files
            os.write(answer_fd, b"%d %d %d" % (count, min(disk_files_before, disk_files), is_full))
        finally:
            os._exit(0)


def count_files(place: str, max_files: int) -> int:
    """Return the number of names below a directory, or `max_files` + 1 if there are more."""
    found, folders = 0, [place]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                found += 1
                if found > max_files:
                    return found
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return found
