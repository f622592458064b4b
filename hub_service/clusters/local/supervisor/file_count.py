"""How many files a worker has in its own directory, counted beside it.

A disk may be one that does not answer, and a home one that only its user may read: so they are
counted by a process of its own, as the worker's account, and nobody waits for it. Standard library
only, as all of the supervisor's program is (`subreaper.py`).
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import worker_start
else:
    import worker_start  # in the witness's program, which has seen to it that it is found

LOOK_EVERY_S = 5.0
REST = 50
"""Of all time a look takes at most this part."""
COUNTED_EVERY_S = 60.0
"""Whatever the disk says: others may remove as many as a worker makes."""
NICE = 10


class FileCount:
    """Asks again and again; `more` once there were more than there may be."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Take what the supervisor is told; one that is told of no bound never looks."""
        self.most: int = spec["most_files"]
        self.more = False
        self._spec = spec
        self._place: str = spec.get("own_directory", "")
        self._looks_from = time.monotonic() + LOOK_EVERY_S
        self._began = 0.0
        self._answer = -1
        # Of the worker's files there are no more than were counted and the disk has got since.
        self._counted, self._disk_had = 0, 0
        self._counted_at = self._looks_from

    def look(self) -> bool:
        """Ask when it is time; take the answer if it is there, and tell whether it was."""
        if self._answer >= 0:
            return self._take()
        if self._place and self.most and time.monotonic() >= self._looks_from:
            self._ask()
        return False

    def _ask(self) -> None:
        self._began = time.monotonic()
        parent = os.getpid()
        try:
            self._answer, answer_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._looks_from = self._began + LOOK_EVERY_S
            return
        # Where the machine has no process left there is no answer, as where one was killed.
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                self._answer_and_end(answer_write, parent)
        os.close(answer_write)

    def _take(self) -> bool:
        try:
            told = os.read(self._answer, 100).split()
        except BlockingIOError:
            return False
        os.close(self._answer)
        self._answer = -1
        now = time.monotonic()
        self._looks_from = max(self._began + LOOK_EVERY_S, now + REST * (now - self._began))
        if len(told) == 3:
            self._counted, self._disk_had, anew = map(int, told)
            self._counted_at = now if anew else self._counted_at
            self.more = self._counted > self.most
        return True

    def _answer_and_end(self, answer: int, parent: int) -> None:
        """Be the process that looks; never returns."""
        try:
            worker_start.set_signals_right()
            worker_start.change_account(self._spec)
            worker_start.die_with(parent)
            os.nice(NICE)
            disk = os.statvfs(self._place)
            has = disk.f_files - disk.f_ffree  # 0 where the file system does not count them
            counted, had = self._counted, self._disk_had
            anew = not has or not had or counted + has - had > self.most
            if anew := anew or self._began > self._counted_at + COUNTED_EVERY_S:
                counted, had = count_files(self._place, self.most), has
            os.write(answer, b"%d %d %d" % (counted, min(had, has), anew))
        finally:
            os._exit(0)


def count_files(place: str, most: int) -> int:
    """Return how many names there are below a directory, or `most` + 1 if there are more."""
    found, folders = 0, [place]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                found += 1
                if found > most:
                    return found
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return found
