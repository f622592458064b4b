"""Integrity check, schema check and online backup of SQLite files, independent of their tables."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from urllib.parse import quote

from runai.hub_service.wire.errors import Unavailable

CLUSTER = "cluster.sqlite"
FIRST_REVISIONS = {CLUSTER: "0200", "ledger.sqlite": "0100"}
"""First revision of each file that is read; the ones below it are from before the first release."""

PAGES_AT_ONCE = 1000
"""Pages per step of a backup, after each of which its progress is reported."""

ReportProgress = Callable[[str, int, int], None]
"""Progress callback: file name, pages copied, pages in total."""


def invalid_reason(path: Path, *, to_read: bool = False) -> str:
    """Return a file's problem as half a sentence; "" if it is sound or missing.

    With `to_read` the file may be in a read-only place.
    """
    if not path.exists():
        return ""
    if to_read and not os.access(path, os.R_OK):
        return "may not be read by this account"
    if not to_read and not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        return "may not be read and written by this account"
    try:
        opened = opened_to_read(path) if to_read else sqlite3.connect(path, timeout=5)
        with closing(opened) as connection:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as failed:
        return f"cannot be opened ({failed})"
    except sqlite3.DatabaseError as failed:
        return f"is broken ({failed})"
    return "" if result == "ok" else f"is broken ({result})"


def check(path: Path, *, to_read: bool = False) -> None:
    """Check a file with `invalid_reason`; a missing file passes.

    Raises:
        Unavailable: the file is broken, or may not be written.
    """
    if reason := invalid_reason(path, to_read=to_read):
        raise Unavailable(
            f"{path} {reason}.",
            hint="Restore a backup: runai restore BACKUP. `runai doctor` looks at it again.",
            code="database_broken",
        )


def newer(path: Path | str, revision: str) -> Unavailable:
    """Return the error for a schema that this program does not know.

    A Path is a file of the platform; a str names a backup, or a database on a server.
    """
    name = path.name if isinstance(path, Path) else path.partition(" ")[0]
    first = FIRST_REVISIONS.get(name, FIRST_REVISIONS["ledger.sqlite"])
    if revision.isdecimal() and revision < first:
        anew = "Nothing reads it any more: name another backup, or an empty database."
        if name == CLUSTER and isinstance(path, Path):
            anew = new_queue_hint(path.parent)
        elif isinstance(path, Path):
            anew = f"To begin anew: mv {path.parent} {path.parent}.old, then `runai up` again."
        return Unavailable(
            f"{path} was written before the first release, whose schemas are others.",
            hint=anew,
            code="database_older",
        )
    return Unavailable(
        f"{path} has the schema {revision}, which this version does not know.",
        hint="A newer version wrote it: install that one again, or restore a backup of before.",
        code="database_newer",
    )


def set_aside_paths(root: Path) -> dict[Path, Path]:
    """Return new paths of a data directory's folder of jobs, if there is one, and of its queue."""
    names = [name for name in ("jobs", CLUSTER) if os.path.lexists(root / name)]
    suffixes = (f"earlier{f'-{number}' if number > 1 else ''}" for number in count(1))
    free = next(s for s in suffixes if not any(os.path.lexists(root / f"{n}.{s}") for n in names))
    return {root / name: root / f"{name}.{free}" for name in names}


def new_queue_hint(root: Path) -> str:
    """Return which command sets an earlier version's queue aside, and what stays."""
    queue = set_aside_paths(root).get(root / CLUSTER, root / CLUSTER).name
    return (
        f"`runai up` with the same options and --new-queue renames the queue to {queue} and the"
        f" folder of its jobs to jobs{queue.removeprefix(CLUSTER)}, where checkpoints lie then"
        " (PROJECT/NAME/checkpoints; with --system-users they stay in the homes); accounts, homes"
        " and usage stay, projects that are in no projects.yaml are made again, and nothing is"
        " deleted."
    )


def unknown_revision(path: Path, revisions: Path) -> str:
    """Return a file's schema revision if the folder has no module for it, else ""."""
    with closing(opened_to_read(path)) as connection:
        named = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(named).fetchone() is None:
            return ""
        found = [str(row[0]) for row in connection.execute("SELECT * FROM alembic_version")]
    known = {word for module in revisions.glob("*.py") for word in module.stem.split("_")}
    return next((revision for revision in found if revision not in known), "")


def copy(source: Path, target: Path, report_progress: ReportProgress | None = None) -> None:
    """Copy a consistent snapshot of a file, also during writes, with mode 0600.

    Raises:
        Unavailable: the source is broken, the copy is, or it could not be made.
    """
    progress = (
        None
        if report_progress is None
        else lambda _, left, total: report_progress(source.name, total - left, total)
    )
    check(source, to_read=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(opened_to_read(source)) as original,
            closing(sqlite3.connect(target)) as copied,
        ):
            original.backup(copied, pages=_pages_at_once(original), progress=progress)
            copied.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    except sqlite3.Error as failed:
        raise Unavailable(
            f"{source} could not be copied to {target}: {failed}.",
            hint="Is there room on the disk?",
            code="not_copied",
        ) from failed
    check(target)


def _pages_at_once(source: sqlite3.Connection) -> int:
    """Prepare a backup that no writer can delay; return its pages per step, -1: all.

    SQLite starts a stepped copy anew after each write of another process. In WAL mode an open read
    transaction prevents it, and writers go on; in other modes they wait for the only step.
    """
    if source.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        return -1
    source.execute("BEGIN")
    source.execute("SELECT 1 FROM sqlite_master").fetchone()  # it begins with the first read
    return PAGES_AT_ONCE


def opened_to_read(path: Path) -> sqlite3.Connection:
    """Open a file read-only, without creating files beside it; writers may use it meanwhile."""
    mode, log = "mode=ro", path.with_name(f"{path.name}-wal")
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    if is_read_only and not (log.exists() and log.stat().st_size):
        mode = "immutable=1"  # otherwise SQLite tries to create a write-ahead log
    return sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=30)
