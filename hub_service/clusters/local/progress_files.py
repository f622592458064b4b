"""The progress files of jobs on this machine, read only where they may have changed.

Each belongs to its job's account, which may put anything there, while we may be root: no link is
followed at the end of the path, a file of somebody else's is not looked at, and little is read.
What is in one is `progress`'s. Called by `cluster`, off the event loop.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runai.hub_service.clusters.progress import PROGRESS_FILE, Progress, read_progress
from runai.hub_service.clusters.records import WorkloadId
from runai.hub_service.errors import NotFound

__all__ = ["ProgressFile", "ProgressFiles"]

MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProgressFile:
    """Where a job reports to."""

    workload: WorkloadId
    folder: Path
    owner: Callable[[], int | None]
    """Whose it must be; None: ours. NotFound: there is no account any more."""
    phase: object
    """Unlike before whenever the job was started or has ended."""
    goes_on: bool
    """Whether it may report now."""


class ProgressFiles:
    """What was read last, and of which state of each file."""

    def __init__(self) -> None:
        """Begin without having read anything."""
        self._read: dict[WorkloadId, tuple[object, object, Progress | None]] = {}

    def look(self, files: Iterable[ProgressFile]) -> Mapping[WorkloadId, Progress]:
        """Return what jobs reported last; those that reported nothing are left out.

        The file of a job that does not run is looked at once: nobody writes to it.
        """
        seen: dict[WorkloadId, tuple[object, object, Progress | None]] = {}
        for file in files:
            before = self._read.get(file.workload)
            if before is not None and before[0] == file.phase and not file.goes_on:
                seen[file.workload] = before
            else:
                seen[file.workload] = (file.phase, *_look(file, before))
        self._read = seen
        return {workload: found[2] for workload, found in seen.items() if found[2] is not None}


def _look(
    file: ProgressFile, before: tuple[object, object, Progress | None] | None
) -> tuple[object, Progress | None]:
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
        owner = file.owner()
        if owner is None:
            owner = os.getuid()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            return stamp, None
        return stamp, read_progress(os.read(descriptor, MOST_BYTES))
    except (OSError, NotFound):
        return None, None
    finally:
        os.close(descriptor)
