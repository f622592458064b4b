"""Put a backup back while the platform is stopped: all of it, or none.

Everything that is to come is made ready beside what is there, looked into, and only then takes its
place (`restoration_journal`). Knows the order; called by `runai restore`.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from runai.embedded.backups import DATABASES, Tell, of, read_manifest
from runai.embedded.directory import DataDirectory
from runai.embedded.known_schemas import unknown_schema
from runai.embedded.restoration_journal import Journal, settle
from runai.embedded.unknown_workers import folders_of_others, running_unknown, stop
from runai.hub_service import database_files
from runai.hub_service.clusters.local.ownership import claim
from runai.hub_service.clusters.local.store import SqliteStore
from runai.hub_service.clusters.row import Row
from runai.hub_service.errors import Conflict, RunaiError, Unavailable
from runai.hub_service.ledger.store import Store


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restoration has done."""

    databases: tuple[str, ...]
    aside: Path
    """Where what was there before has gone."""
    stopped: tuple[str, ...]
    """Workers that the backup does not know."""


def restore(
    directory: DataDirectory,
    backup: Path,
    *,
    stop_unknown: bool = False,
    tell: Tell | None = None,
) -> Restored:
    """Put a backup back; what is there goes aside, nothing is deleted. `tell` as of `back_up`.

    One that was interrupted is finished first; of the same backup that is all.

    Raises:
        NotFound: it is no backup.
        Conflict: the platform or its service runs, or workers run that the backup does not know.
        Unavailable: a database of the backup is broken or of a newer version, or there is no room.
    """
    root = directory.root
    begun = Journal.begun(root)
    if begun is None or begun.backup != str(backup):
        read_manifest(backup)  # before a directory is made for nothing
    with _nobody_else(directory):
        journal = Journal.begun(root)
        if journal is not None:
            journal.finish(root)
        if journal is None or journal.backup != str(backup):
            with _as_it_was(root, backup):
                journal = _made_ready(directory, backup, stop_unknown, tell)
                journal.begin(root)
            journal.finish(root)
    return Restored(journal.databases, root / journal.aside, journal.stopped)


def _made_ready(
    directory: DataDirectory,
    backup: Path,
    stop_unknown: bool,  # noqa: FBT001  as it was asked for
    tell: Tell | None,
) -> Journal:
    """Copy all that is to come beside what is there, and end whom it does not know."""
    root, told = directory.root, read_manifest(backup)
    names = tuple(name for name in DATABASES if name in told["databases"])
    for name in names:
        database_files.check(backup / name, to_read=True)
    directory.prepare(system_users=False)
    _clear(root)
    stamp = _new_stamp(root)
    staged, aside = f".restoring-{stamp}", f"before-restore-{stamp}"
    rows = _stage(backup, names, root / staged, tell)
    unknown = running_unknown(root / "jobs", rows)
    if unknown and not stop_unknown:
        listed = ", ".join(sorted(unknown))
        raise Conflict(
            f"Workers run that this backup does not know: {listed}.",
            hint="They would run beside others on the same GPUs. End them, or say --stop-unknown.",
            code="unknown_workers",
        )
    stop(unknown)
    (root / aside).mkdir(mode=0o700)
    moves = _moves(root, names, rows, staged, aside)
    return Journal(str(backup), names, tuple(sorted(unknown)), staged, aside, moves)


@contextmanager
def _as_it_was(root: Path, backup: Path) -> Generator[None]:
    """Leave nothing of what could not be made ready."""
    try:
        yield
    except (OSError, sqlite3.Error, SQLAlchemyError) as failed:
        _clear(root)
        raise Unavailable(
            f"{backup} could not be put back: {_why(failed)}. What is there is as it was.",
            hint="Is there room on the disk of the data directory?",
            code="not_restored",
        ) from failed
    except RunaiError:
        _clear(root)
        raise


@contextmanager
def _nobody_else(directory: DataDirectory) -> Generator[None]:
    """Keep hub and service from starting, which must not run."""
    lock = directory.lock(f"a restoration (process {os.getpid()})")
    try:
        cluster = claim(directory.root)
        try:
            yield
        finally:
            os.close(cluster)
    finally:
        os.close(lock)


def _clear(root: Path) -> None:
    """Remove what was made ready and has not begun to take its place."""
    for path in root.glob(".restoring*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _new_stamp(root: Path) -> str:
    now = time.strftime("%Y-%m-%dT%H-%M-%S")
    stamps = (now, *(f"{now}-{number}" for number in range(2, 1000)))
    return next(stamp for stamp in stamps if not (root / f"before-restore-{stamp}").exists())


def _stage(
    backup: Path, names: tuple[str, ...], staged: Path, tell: Tell | None
) -> Mapping[str, Row]:
    """Copy all that is to come, and look into it; return the workloads that it knows."""
    staged.mkdir(mode=0o700)
    for name in names:
        database_files.copy(backup / name, staged / name, of(name, tell))
        if unknown := unknown_schema(staged / name):
            raise database_files.newer(f"{name} of {_made_by(backup)}", unknown)
    rows = {}
    if "cluster.sqlite" in names:
        with closing(SqliteStore(staged / "cluster.sqlite")) as store:
            rows = {row.id: row for row in store.rows()}
            list(store.projects())
    if "ledger.sqlite" in names:
        Store(staged / "ledger.sqlite").close()  # of today from now on, and nobody's
    if (backup / "secrets").is_dir():
        (staged / "secrets").mkdir(mode=0o700)
        for path in sorted((backup / "secrets").rglob("*")):  # folders before what is in them
            target = staged / path.relative_to(backup)
            if path.is_dir():
                target.mkdir(mode=0o700)
            else:
                shutil.copy2(path, target)
    for path in [*staged.rglob("*"), staged]:
        settle(path)
    return rows


def _made_by(backup: Path) -> str:
    return f"{backup}, made by version {read_manifest(backup).get('version', '?')},"


def _moves(
    root: Path, names: tuple[str, ...], rows: Mapping[str, Row], staged: str, aside: str
) -> tuple[tuple[str, str], ...]:
    """Return what is to be renamed to what, in this order.

    Raises:
        Conflict: something cannot be renamed, for it lies on another disk.
    """
    # With the logs beside the databases.
    leaving = [path for name in names for path in sorted(root.glob(f"{name}*"))]
    leaving += folders_of_others(root / "jobs", rows)
    coming = [*names]
    if (root / staged / "secrets").is_dir():
        leaving.append(root / "secrets")
        coming.append("secrets")
    for path in leaving:
        if path.lstat().st_dev != root.stat().st_dev:
            raise Conflict(
                f"{path} lies on another disk than {root}, and would have to go aside.",
                hint="Move it to a place of your choice by hand, then run the same command again.",
                code="other_disk",
            )
    paths = [str(path.relative_to(root)) for path in leaving]
    return (
        *((path, f"{aside}/{path}") for path in paths),
        *((f"{staged}/{name}", name) for name in coming),
    )


def _why(failed: Exception) -> str:
    if isinstance(failed, SQLAlchemyError):
        failed = getattr(failed, "orig", None) or failed
    if isinstance(failed, OSError):
        return failed.strerror or type(failed).__name__
    return str(failed)
