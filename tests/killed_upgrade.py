"""Opens a database that is to be made or brought up to date, and is killed after each statement.

`python killed_upgrade.py cluster|ledger PLACE [OLD]`: a child opens a copy of OLD, or a file that
is not there yet, and kills itself -9 after its first statement, the next one after its second, and
so on until one comes through. Prints how many were killed, and what was wrong.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import alembic.command  # noqa: F401  once for all children
import sqlalchemy as sa

from runai.hub_service.clusters.local.store import SqliteStore
from runai.hub_service.database_files import trouble
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger.store import Store

KINDS = {"cluster": SqliteStore, "ledger": Store}


def content(path: Path) -> Iterator[str]:
    """Yield the whole of a database as SQL: its tables in their order, and their rows."""
    with closing(sqlite3.connect(path)) as connection:
        yield from connection.iterdump()


def killed(kind: str, path: Path, after: int) -> bool:
    """Open a database in a child that ends after so many statements; tell whether it got there."""
    if (child := os.fork()) == 0:
        left = iter(range(after - 1))

        def count_down(*_: object) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(sa.Engine, "after_cursor_execute", count_down)
        sa.event.listen(sa.Engine, "commit", count_down)
        try:
            KINDS[kind](path).close()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main() -> int:
    """Kill until one comes through; return how many findings there were."""
    kind, place, old = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    path, wanted = place / f"{kind}.sqlite", place / "wanted.sqlite"
    if old:
        shutil.copy(old[0], wanted)
    KINDS[kind](wanted).close()
    as_it_should_be, wrong = [*content(wanted)], 0
    for statements in count(1):
        for left in place.glob(f"{path.name}*"):
            left.unlink()
        if old:
            shutil.copy(old[0], path)
        if not killed(kind, path, statements):
            print(f"{statements - 1} kills")
            return wrong
        try:
            KINDS[kind](path).close()
        except (Unavailable, sa.exc.SQLAlchemyError) as failed:
            print(f"after {statements} statements: {failed!r}")
            wrong += 1
        else:
            if trouble(path) or [*content(path)] != as_it_should_be:
                print(f"after {statements} statements it is not what it should be")
                wrong += 1
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
