"""The progress files of jobs on this machine, read only where they may have changed.

Each belongs to its job's account, which may put anything there, while we may be root: no link is
followed at the end of the path, a file of somebody else's is not looked at, and little is read.
What is in one is `progress`'s. Called by `cluster`, off the event loop.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runai.hub_service.model.progress import PROGRESS_FILE, Progress, read_progress
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.errors import NotFound

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


class ProgressFiles:
    """What was read last, and of which state of each file."""

    def __init__(self) -> None:
        """Begin without having read anything."""
        self._read: dict[WorkloadId, tuple[object, object, Progress | None]] = {}

    def rests(self, workload: WorkloadId, phase: object) -> bool:
        """Tell whether a job that does not run was looked at: nobody writes to its file."""
        before = self._read.get(workload)
        return before is not None and before[0] == phase

    def look(
        self, files: Iterable[ProgressFile], begun: Collection[WorkloadId]
    ) -> Mapping[WorkloadId, Progress]:
        """Return what jobs reported last, these and those that rest; not who reported nothing.

        `begun` are all of which anything is to be remembered.
        """
        found = self.look_at(files, begun)
        known = list(self._read.items())
        if len(known) > len(begun):
            self._read = {workload: read for workload, read in known if workload in begun}
        return found

    def look_at(
        self, files: Iterable[ProgressFile], begun: Collection[WorkloadId]
    ) -> Mapping[WorkloadId, Progress]:
        """Return what some jobs reported last, these and those of them that rest."""
        for file in files:
            self._read[file.workload] = (file.phase, *_look(file, self._read.get(file.workload)))
        told = ((workload, self._read.get(workload)) for workload in begun)
        return {w: read[2] for w, read in told if read is not None and read[2] is not None}


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
