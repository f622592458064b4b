"""The queue of an earlier version is set aside: renamed with its jobs' folder, never deleted."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from runai.hub_service.clusters.local.data_dir_checks import (
    JOBS,
    check_original,
    check_version,
    running_workers,
)
from runai.hub_service.clusters.local.store.cluster_lock import claim
from runai.hub_service.sqlite.files import CLUSTER, set_aside_paths
from runai.hub_service.wire.errors import Conflict, Unavailable


def set_queue_aside(root: Path) -> dict[Path, Path]:
    """Rename the queue and the folder of jobs; return the new paths, {} if this version reads it.

    Raises:
        Conflict: a workload of it runs, a service has it open, or it is a copy of one in use.
        Unavailable: it cannot be read or renamed, or the folder's disk is not mounted.
    """
    try:
        check_version(root)
    except Unavailable as earlier:
        if earlier.code != "database_older":
            raise
    else:
        return {}
    check_original(root)
    lock = claim(root)
    try:
        if running := running_workers(root):
            pids = " ".join(str(pid) for _, pid in running)
            raise Conflict(
                f"Workloads of the queue in {root} still run: {', '.join(dict(running))}.",
                hint=f"They save and stop by: kill -TERM {pids}",
                code="workloads_running",
            )
        _rename(root, paths := set_aside_paths(root))
    except (OSError, sqlite3.Error) as failed:
        raise Unavailable(
            f"The queue in {root} could not be renamed: {failed}.",
            hint="Nothing is lost. Mend that, then run the same command again.",
            code="not_set_aside",
        ) from failed
    finally:
        os.close(lock)
    return paths


def _rename(root: Path, paths: dict[Path, Path]) -> None:
    """Rename folder and queue; both, or after a crash the folder alone.

    Raises:
        OSError: one cannot be renamed, or the folder is a link to a disk that is not mounted.
    """
    if (root / JOBS).is_symlink():
        (root / JOBS).stat()
    with closing(sqlite3.connect(root / CLUSTER)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    # The queue last: after a crash in between it is still the earlier one, and refused.
    for path, aside in paths.items():
        path.rename(aside)
