"""Real failures of JupyterHub's database: another process holds SQLite's locks on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

LOCKED_WITHIN_S = 30


@contextmanager
def failing(data: Path, *, reads: bool) -> Iterator[None]:
    """Make every commit of a data directory's hub fail, or (`reads`) every read as well."""
    database = data / "jupyterhub.sqlite"
    with closing(sqlite3.connect(database, LOCKED_WITHIN_S, isolation_level=None)) as other:
        other.execute(f"BEGIN {'EXCLUSIVE' if reads else 'IMMEDIATE'}")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
