"""Workers of a data directory that are missing from a backup's database.

After a restore they would share GPUs with the backup's workers, and their folders contain other
jobs' exit statuses. Equal names and attempt numbers are not enough: a job may have been deleted and
submitted again since the backup.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from runai.hub_service.clusters.local.data_dir_checks import LOCKS
from runai.hub_service.clusters.local.processes.attempt import Attempt
from runai.hub_service.clusters.local.processes.process_watch import is_same
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.errors import Conflict

EXIT_TIMEOUT_S = 60.0


def running_unknown(
    jobs: Path, rows: Mapping[str, WorkloadRecord]
) -> Iterator[tuple[str, Attempt]]:
    """Yield the running workers of attempts that are not active in the database."""
    for lock in jobs.glob(LOCKS):
        attempt = Attempt(lock.parent)
        project, name, started, worker = lock.parent.relative_to(jobs).parts
        row = rows.get(f"{project}/{name}")
        is_active = row and row.attempts == _number(started) and row.active
        if row and is_active and not _is_other_job(lock.parent.parent, row):
            continue
        if attempt.holder() is not None:
            yield f"{project}/{name}-{worker.removeprefix('worker-')}", attempt


def unknown_attempt_folders(jobs: Path, rows: Mapping[str, WorkloadRecord]) -> Iterator[Path]:
    """Yield the folders of attempts that are not in the database.

    A later workload of the same name must not read another job's exit status.
    """
    for path in sorted(jobs.glob("*/*/attempt-*")):
        project, name, started = path.relative_to(jobs).parts
        row = rows.get(f"{project}/{name}")
        if row is None or _number(started) > row.attempts or _is_other_job(path, row):
            yield path


def stop(unknown: Mapping[str, Attempt]) -> None:
    """Terminate workers, and wait until they have ended.

    Raises:
        Conflict: one still runs after 60 s.
    """
    for attempt in unknown.values():
        if (pid := attempt.holder()) is not None:
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while any(attempt.holder() is not None for attempt in unknown.values()):
        if time.monotonic() > deadline:
            raise Conflict(
                f"They do not end: {', '.join(sorted(unknown))}.",
                hint="Their grace may be longer; try again.",
            )
        time.sleep(0.1)


def _is_other_job(folder: Path, row: WorkloadRecord) -> bool:
    """Return True if an attempt belongs to another job of the same name and number.

    A row still without a process has no identity to compare: an existing process may be another
    job's, on other GPUs.
    """
    for worker in row.active:
        path = folder / f"worker-{worker.index}"
        if worker.attempt != _number(folder.name) or not path.exists():
            continue
        process = Attempt(path).process()
        if worker.process is None or process is None:
            if worker.process is not process:  # one of them is known, the other is not
                return True
        elif not is_same(worker.process, process):
            return True
    return False


def _number(started: str) -> int:
    return int(started.removeprefix("attempt-"))
