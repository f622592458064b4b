"""SQLite files as a whole: whether one is sound, and a copy of one that is in use.

Knows SQLite's own checks and its online backup; no table. Called by the stores before they trust a
file, and by `runai backup`, `restore` and `doctor`.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from runai.hub_service.wire.errors import Unavailable

NEVER_RELEASED = "000"
"""How the revisions begin that only commits before 0.1.0 have written; 0.1.0 begins with 0100."""

PAGES_AT_ONCE = 1000
"""So that a writer waits for milliseconds while a large file is copied."""

Tell = Callable[[str, int, int], None]
"""Of which file how many pages are copied, and of how many."""


def trouble(path: Path, *, to_read: bool = False) -> str:
    """Say what is wrong with a file, as half a sentence; "" where it is sound or not there yet.

    One that is only to be read may lie where nothing can be written.
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
            (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as failed:
        return f"cannot be opened ({failed})"
    except sqlite3.DatabaseError as failed:
        return f"is broken ({failed})"
    return "" if told == "ok" else f"is broken ({told})"


def check(path: Path, *, to_read: bool = False) -> None:
    """Make sure that a file can be trusted, as `trouble` says; one that is not there yet can.

    Raises:
        Unavailable: it is broken, or may not be written.
    """
    if wrong := trouble(path, to_read=to_read):
        raise Unavailable(
            f"{path} {wrong}.",
            hint="Restore a backup: runai restore BACKUP. `runai doctor` looks at it again.",
            code="database_broken",
        )


def newer(path: Path | str, revision: str) -> Unavailable:
    """Return what to raise for a schema that this program does not know.

    A Path is a platform's own file; a str names a backup's, or a database of a server.
    """
    if revision.startswith(NEVER_RELEASED):
        anew = "Nothing reads it any more: name another backup, or an empty database."
        if isinstance(path, Path):
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


def unknown_revision(path: Path, revisions: Path) -> str:
    """Return the revision of a file's schema that no module in a folder is named after; or ""."""
    with closing(opened_to_read(path)) as connection:
        named = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(named).fetchone() is None:
            return ""
        found = [str(row[0]) for row in connection.execute("SELECT * FROM alembic_version")]
    known = {word for module in revisions.glob("*.py") for word in module.stem.split("_")}
    return next((revision for revision in found if revision not in known), "")


def copy(source: Path, target: Path, tell: Tell | None = None) -> None:
    """Copy a file as it is at one moment, though others write to it; only its owner reads it.

    Raises:
        Unavailable: the source is broken, or the copy is.
    """
    told = None if tell is None else lambda _, left, of: tell(source.name, of - left, of)
    check(source, to_read=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(opened_to_read(source)) as from_,
            closing(sqlite3.connect(target)) as to,
        ):
            from_.backup(to, pages=PAGES_AT_ONCE, progress=told)
            to.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    except sqlite3.Error as failed:
        raise Unavailable(
            f"{source} could not be copied to {target}: {failed}.",
            hint="Is there room on the disk?",
            code="not_copied",
        ) from failed
    check(target)


def opened_to_read(path: Path) -> sqlite3.Connection:
    """Open a file and write nothing, nor beside it; others may have it open and write."""
    how, log = "mode=ro", path.with_name(f"{path.name}-wal")
    nobody_writes = os.statvfs(path).f_flag & os.ST_RDONLY
    if nobody_writes and not (log.exists() and log.stat().st_size):
        how = "immutable=1"  # SQLite would want to make a log, though there is none to be read
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=30)
