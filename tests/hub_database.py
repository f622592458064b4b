"""JupyterHub's database, failing for real: another process holds SQLite's own locks on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

LOCKED_WITHIN_S = 30


@contextmanager
def failing(data: Path, *, reads: bool) -> Iterator[None]:
    """Let the hub of a data directory commit nothing, or (`reads`) not even look anything up."""
    database = data / "jupyterhub.sqlite"
    with closing(sqlite3.connect(database, LOCKED_WITHIN_S, isolation_level=None)) as other:
        other.execute(f"BEGIN {'EXCLUSIVE' if reads else 'IMMEDIATE'}")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
