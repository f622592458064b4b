"""Atomic restore of a backup while the platform is stopped.

The backup is copied into a staging folder of the data directory and checked. The rename of that
folder to `RESTORING` commits the restore: no platform starts until all its files are moved into
place, and the next restore finishes an interrupted one. Homes, settings and jobs' files are in no
backup and stay, as jobs keep running; hence the data directory itself, which may also be a mount
point, is not renamed.
"""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from runai.embedded.backup.backups import DATABASES, MANIFEST, copy_backup, read_manifest
from runai.embedded.backup.unknown_workers import running_unknown, stop, unknown_attempt_folders
from runai.embedded.data_directory import DataDirectory, write_private
from runai.hub_service.clusters.local.store import cluster_sqlite
from runai.hub_service.clusters.local.store.cluster_lock import RESTORING, claim
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.ledger import opening
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.sqlite.files import ReportProgress, newer, opened_to_read, unknown_revision
from runai.hub_service.wire.errors import Conflict, NotFound, Unavailable


def unknown_schema(database: Path) -> str:
    """Return a database's schema if this version does not know it, else ""."""
    revisions = _revisions(database.name)
    # Other checks report an unreadable database.
    with suppress(sqlite3.Error), closing(opened_to_read(database)) as connection:
        if revisions is not None and (revision := unknown_revision(database, revisions)):
            return revision
        (row_shape,) = connection.execute("PRAGMA user_version").fetchone()
        if database.name == "cluster.sqlite" and row_shape > cluster_sqlite.ROWS:
            return f"{cluster_sqlite.LATEST} with rows of the shape {row_shape}"
    return ""


def _revisions(name: str) -> Path | None:
    """Return the folder of a database's known revisions; None: not installed."""
    if name == "jupyterhub.sqlite":
        found = find_spec("jupyterhub")  # not imported, which takes seconds
        if found is None or found.origin is None:
            return None
        return Path(found.origin).parent / "alembic/versions"
    return (
        cluster_sqlite.MIGRATIONS if name == "cluster.sqlite" else opening.MIGRATIONS
    ) / "versions"


_STAGED = ".restoring"


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    databases: tuple[str, ...]
    aside: Path
    """Folder of the replaced files."""
    stopped: tuple[str, ...]
    """Stopped workers that the backup does not contain."""


def restore(
    directory: DataDirectory,
    backup: Path,
    *,
    stop_unknown: bool = False,
    report_progress: ReportProgress | None = None,
) -> Restored:
    """Restore a backup; move existing files aside, delete none. `report_progress`: see `back_up`.

    An interrupted restore is finished first; if it was of the same backup, that is all.

    Raises:
        NotFound: the folder is no backup.
        Conflict: the platform or its service runs, or unknown workers run.
        Unavailable: a database of the backup is broken or newer, a file of it is no regular one,
            or the disk is full.
    """
    root = directory.root
    if _pending_manifest(root).get("backup") != str(backup):
        read_manifest(backup)  # before creating a data directory
    with ExitStack() as locks:
        locks.callback(os.close, directory.lock(f"a restoration (process {os.getpid()})"))
        locks.callback(os.close, claim(root))
        manifest = _finish_committed(root)
        if manifest.get("backup") != str(backup):
            _commit(directory, backup, stop_unknown=stop_unknown, report_progress=report_progress)
            manifest = _finish_committed(root)
    databases, stopped = tuple(manifest["databases"]), tuple(manifest["stopped"])
    return Restored(databases, root / manifest["aside"], stopped)


def _pending_manifest(root: Path) -> Mapping[str, Any]:
    """Return the manifest of a committed, unfinished restore; {} without one."""
    pending = root / RESTORING
    try:
        return read_manifest(pending) if pending.exists() else {}
    except NotFound as wrong:
        raise Unavailable(
            f"{pending} says that a restoration was interrupted, and cannot be read.",
            hint="What was there lies in the newest before-restore-*, what was to come in that"
            " folder: put one of them in place by hand, then remove it.",
            code="restoration_unreadable",
        ) from wrong


def _commit(
    directory: DataDirectory,
    backup: Path,
    *,
    stop_unknown: bool,
    report_progress: ReportProgress | None,
) -> None:
    """Stage the backup, stop unknown workers, and commit the restore."""
    root, staged = directory.root, directory.root / _STAGED
    try:
        manifest = read_manifest(backup)
        directory.prepare(system_users=directory.is_of_system_users)
        shutil.rmtree(staged, ignore_errors=True)
        copy_backup(backup, manifest["databases"], staged, report_progress)
        for name in manifest["databases"]:
            if unknown := unknown_schema(staged / name):
                version = manifest.get("version", "?")
                raise newer(f"{name} of {backup}, made by version {version},", unknown)
        rows = _migrate_staged(staged)
        folders = [str(p.relative_to(root)) for p in unknown_attempt_folders(root / "jobs", rows)]
        for path in _files_to_move(root, staged, folders):
            if path.lstat().st_dev != root.stat().st_dev:
                raise Conflict(
                    f"{path} lies on another disk than {root}, and would have to go aside.",
                    hint="Move it to a place of your choice by hand, then run the same command"
                    " again.",
                    code="other_disk",
                )
        running = dict(running_unknown(root / "jobs", rows))
        if running and not stop_unknown:
            raise Conflict(
                f"Workers run that this backup does not know: {', '.join(sorted(running))}.",
                hint="They would run beside others on the same GPUs. End them, or say"
                " --stop-unknown.",
                code="unknown_workers",
            )
        stop(running)
        now = time.strftime("before-restore-%Y-%m-%dT%H-%M-%S")
        candidates = (now, *(f"{now}-{number}" for number in range(2, 1000)))
        aside = next(name for name in candidates if not (root / name).exists())
        result = {"backup": str(backup), "stopped": sorted(running), "aside": aside}
        write_private(staged / MANIFEST, json.dumps({**manifest, **result, "folders": folders}))
        for path in [*staged.rglob("*"), staged]:
            _fsync(path)
        staged.rename(root / RESTORING)
    except (OSError, sqlite3.Error, SQLAlchemyError) as failed:
        why = getattr(failed, "strerror", None) or getattr(failed, "orig", None) or failed
        raise Unavailable(
            f"{backup} could not be put back: {why}. What is there is as it was.",
            hint="Is there room on the disk of the data directory?",
            code="not_restored",
        ) from failed
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _migrate_staged(staged: Path) -> Mapping[str, WorkloadRecord]:
    """Migrate the staged databases, check that they are readable, return their workloads."""
    if (staged / "ledger.sqlite").exists():
        LedgerStore(staged / "ledger.sqlite").close()  # migrates it
    if not (staged / "cluster.sqlite").exists():
        return {}
    with closing(SqliteStore(staged / "cluster.sqlite")) as store:
        list(store.projects())
        return {row.id: row for row in store.rows()}


def _finish_committed(root: Path) -> Mapping[str, Any]:
    """Finish a committed restore; return its manifest, {} without one."""
    manifest, pending = _pending_manifest(root), root / RESTORING
    if not manifest:
        return {}
    aside = root / manifest["aside"]
    try:
        _fsync(root)  # make the commit durable before the moves
        aside.mkdir(mode=0o700, exist_ok=True)
        for path in _files_to_move(root, pending, manifest["folders"]):
            target = aside / path.relative_to(root)
            if os.path.lexists(target):
                raise Conflict(
                    f"{path} has come while the restoration was interrupted.",
                    hint="Move it away, then run the same command again.",
                    code="restoration_interrupted",
                )
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(target)
            _fsync(target.parent)
        for name in (*manifest["databases"], "secrets"):
            if (pending / name).exists():
                (pending / name).rename(root / name)
        _fsync(root)
        pending.rename(root / _STAGED)
        _fsync(root)
    except OSError as failed:
        raise Unavailable(
            f"The restoration was interrupted: {failed.strerror}.",
            hint="The platform does not start until it is done: make room on its disk, then"
            " run the same command again.",
            code="restoration_interrupted",
        ) from failed
    shutil.rmtree(root / _STAGED, ignore_errors=True)
    return manifest


def _files_to_move(root: Path, pending: Path, folders: Iterable[str]) -> list[Path]:
    """Return the existing files to move aside, and the job folders in `folders`."""
    names = [name for name in (*DATABASES, "secrets") if (pending / name).exists()]
    # Including SQLite's log files beside the databases.
    replaced = [f"{name}{log}" for name in names for log in ("", "-wal", "-shm", "-journal")]
    return [root / name for name in (*replaced, *folders) if os.path.lexists(root / name)]


def _fsync(path: Path) -> None:
    """Call fsync on a file or folder, so that it survives a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
