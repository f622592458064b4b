"""The queue of an earlier version is set aside: renamed with its jobs' folder, never deleted."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from runai.hub_service.clusters.local.data_dir_checks import JOBS, check_version, running_jobs
from runai.hub_service.clusters.local.store.cluster_lock import claim
from runai.hub_service.sqlite.files import CLUSTER, set_aside_paths
from runai.hub_service.wire.errors import Conflict, Unavailable


def set_queue_aside(root: Path) -> dict[Path, Path]:
    """Rename the queue and the folder of jobs; return the new paths, {} if this version reads it.

    Raises:
        Conflict: a job of it runs, or a service has it open.
        Unavailable: it cannot be read or renamed.
    """
    try:
        check_version(root)
    except Unavailable as earlier:
        if earlier.code != "database_older":
            raise
    else:
        return {}
    if running := dict(running_jobs(root / JOBS)):
        raise Conflict(
            f"Jobs of the queue in {root} still run: {', '.join(running)}.",
            hint=f"They save and stop by: kill -TERM {' '.join(map(str, running.values()))}",
            code="jobs_running",
        )
    paths = set_aside_paths(root)
    lock = claim(root)
    try:
        with closing(sqlite3.connect(root / CLUSTER)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        # The queue last: after a crash in between it is still the earlier one, and refused.
        for path, aside in paths.items():
            if path.exists():
                path.rename(aside)
    except (OSError, sqlite3.Error) as failed:
        raise Unavailable(
            f"The queue in {root} could not be renamed: {failed}.",
            hint="Nothing is lost. Mend that, then run the same command again.",
            code="not_set_aside",
        ) from failed
    finally:
        os.close(lock)
    return paths
