"""Workers in a data directory that a backup's database does not know, running or ended.

Knows folders of starts and rows. The same name and number of the start are not enough: a job may
have been deleted since, and submitted again. Called by `restoring`: beside the backup's workers
they would run on the same GPUs, and their folders tell how other jobs have ended.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from runai.hub_service.clusters.local.processes.attempt import Attempt
from runai.hub_service.clusters.local.processes.worker_process import is_same
from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.wire.errors import Conflict

GONE_WITHIN_S = 60.0


def running_unknown(
    jobs: Path, rows: Mapping[str, StoredWorkload]
) -> Iterator[tuple[str, Attempt]]:
    """Yield the workers that run in a start that the database does not know as running."""
    for lock in jobs.glob("*/*/attempt-*/worker-*/lock"):
        attempt = Attempt(lock.parent)
        project, name, started, worker = lock.parent.relative_to(jobs).parts
        row = rows.get(f"{project}/{name}")
        known = row and row.record.attempts == _number(started) and row.active
        if row and known and not _is_of_another(lock.parent.parent, row):
            continue
        if attempt.holder() is not None:
            yield f"{project}/{name}-{worker.removeprefix('worker-')}", attempt


def folders_of_others(jobs: Path, rows: Mapping[str, StoredWorkload]) -> Iterator[Path]:
    """Yield the folders of starts that are not the database's.

    A later workload of the same name must not find how another one has ended.
    """
    for path in sorted(jobs.glob("*/*/attempt-*")):
        project, name, started = path.relative_to(jobs).parts
        row = rows.get(f"{project}/{name}")
        if row is None or _number(started) > row.record.attempts or _is_of_another(path, row):
            yield path


def stop(unknown: Mapping[str, Attempt]) -> None:
    """Have workers end, and wait until they have.

    Raises:
        Conflict: they do not.
    """
    for attempt in unknown.values():
        if (pid := attempt.holder()) is not None:
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GONE_WITHIN_S
    while any(attempt.holder() is not None for attempt in unknown.values()):
        if time.monotonic() > deadline:
            raise Conflict(
                f"They do not end: {', '.join(sorted(unknown))}.",
                hint="Their grace may be longer; try again.",
            )
        time.sleep(0.1)


def _is_of_another(folder: Path, row: StoredWorkload) -> bool:
    """Tell whether a start is another job's than the row's whose name and number it has.

    A row that waits for its worker's process knows none: any that is there may be another's, on
    other GPUs.
    """
    for worker in row.active:
        path = folder / f"worker-{worker.index}"
        if worker.attempt != _number(folder.name) or not path.exists():
            continue
        process = Attempt(path).process()
        if worker.process is None or process is None:
            if worker.process is not process:
                return True
        elif not is_same(worker.process, process):
            return True
    return False


def _number(started: str) -> int:
    return int(started.removeprefix("attempt-"))
