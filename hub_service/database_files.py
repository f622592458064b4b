"""SQLite files as a whole: whether one is sound, and a copy of one that is in use.

Knows SQLite's own checks and its online backup; no table. Called by the stores before they trust a
file, and by `runai backup`, `restore` and `doctor`.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from runai.hub_service.errors import Unavailable

__all__ = ["check", "copy", "newer", "trouble", "unknown_revision"]

PAGES_AT_ONCE = 1000
"""So that a writer waits for milliseconds while a large file is copied."""


def trouble(path: Path) -> str:
    """Say what is wrong with a file, as half a sentence; "" where it is sound or not there yet."""
    if not path.exists():
        return ""
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        return "may not be read and written by this account"
    try:
        with closing(sqlite3.connect(path, timeout=5)) as connection:
            (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as failed:
        return f"cannot be opened ({failed})"
    except sqlite3.DatabaseError as failed:
        return f"is broken ({failed})"
    return "" if told == "ok" else f"is broken ({told})"


def check(path: Path) -> None:
    """Make sure that a file can be trusted; one that is not there yet can.

    Raises:
        Unavailable: it is broken, or may not be written.
    """
    if wrong := trouble(path):
        raise Unavailable(
            f"{path} {wrong}.",
            hint="Restore a backup: runai restore BACKUP. `runai doctor` looks at it again.",
            code="database_broken",
        )


def newer(path: Path | str, revision: str) -> Unavailable:
    """Return what to raise for a file whose schema this program does not know."""
    return Unavailable(
        f"{path} has the schema {revision}, which this version does not know.",
        hint="A newer version wrote it: install that one again, or restore a backup of before.",
        code="database_newer",
    )


def unknown_revision(path: Path, revisions: Path) -> str:
    """Return the revision of a file's schema that no module in a folder is named after; or ""."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as connection:
        named = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(named).fetchone() is None:
            return ""
        found = [str(row[0]) for row in connection.execute("SELECT * FROM alembic_version")]
    known = {word for module in revisions.glob("*.py") for word in module.stem.split("_")}
    return next((revision for revision in found if revision not in known), "")


def copy(source: Path, target: Path, tell: Callable[[int, int], None] | None = None) -> None:
    """Copy a file as it is at one moment, though others write to it; only its owner reads it.

    `tell` is told how many pages are copied, and of how many.

    Raises:
        Unavailable: the source is broken, or the copy is.
    """

    def told(_status: int, left: int, of: int) -> None:
        if tell is not None:
            tell(of - left, of)

    check(source)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=30)) as from_,
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
