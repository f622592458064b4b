"""Reader of local jobs' progress files; it skips files that cannot have changed.

Each file belongs to its job's account, which may put anything there, while the service may be root:
it follows no link at the end of the path, ignores files of other accounts, and reads a bounded
size. It runs in a thread.
"""

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runai.hub_service.model.progress import PROGRESS_FILE, Progress, read_progress
from runai.hub_service.model.records import WorkloadId

MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProgressFile:
    """Location of a job's progress file."""

    workload: WorkloadId
    folder: Path
    owner: int | None
    """Required owner; None: the service's account."""
    phase: object
    """Changes with each start and end of the job."""


class ProgressFiles:
    """Cache of the last progress with each file's stamp."""

    def __init__(self) -> None:
        """Start empty."""
        self._cache: dict[WorkloadId, tuple[object, object, Progress | None]] = {}
        """The job's phase, the file's stamp, and its progress."""

    def is_cached(self, workload: WorkloadId, phase: object) -> bool:
        """Return True if a job without running processes was read: its file does not change."""
        before = self._cache.get(workload)
        return before is not None and before[0] == phase

    def poll(
        self, files: Iterable[ProgressFile], begun: Collection[WorkloadId]
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress, if any, of these files and of jobs at rest.

        `begun` are all jobs to keep in the cache.
        """
        progress = self.read(files, begun)
        entries = list(self._cache.items())
        if len(entries) > len(begun):
            self._cache = {workload: entry for workload, entry in entries if workload in begun}
        return progress

    def read(
        self, files: Iterable[ProgressFile], begun: Collection[WorkloadId]
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress of these files, and of jobs at rest in `begun`."""
        for file in files:
            self._cache[file.workload] = (
                file.phase,
                *_read_file(file, self._cache.get(file.workload)),
            )
        entries = ((workload, self._cache.get(workload)) for workload in begun)
        return {w: read[2] for w, read in entries if read is not None and read[2] is not None}


def _read_file(
    file: ProgressFile, before: tuple[object, object, Progress | None] | None
) -> tuple[object, Progress | None]:
    """Return a file's stamp and progress; of an unchanged file the progress in `before`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file.folder / PROGRESS_FILE, flags)
    except OSError:
        return None, None
    try:
        found = os.fstat(descriptor)
        stamp = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        if before is not None and before[1] == stamp:
            return stamp, before[2]
        owner = os.getuid() if file.owner is None else file.owner
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            return stamp, None
        return stamp, read_progress(os.read(descriptor, MAX_BYTES))
    except OSError:
        return None, None
    finally:
        os.close(descriptor)
