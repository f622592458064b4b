"""Open a database that needs creation or an upgrade, killed after each statement.

`python killed_upgrade.py cluster|ledger PLACE [upgrade]`: a child opens a missing file or, with
`upgrade`, a file that lacks a made-up newest revision. It kills itself with SIGKILL after its first
statement, the next child after its second, and so on until one child succeeds. Prints the number of
kills, and the errors found.
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
from types import ModuleType

import alembic.command  # noqa: F401  once for all children
import sqlalchemy as sa

from runai.hub_service.clusters.local.store import cluster_sqlite
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.ledger import opening, schema
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.sqlite.files import invalid_reason
from runai.hub_service.wire.errors import Unavailable

KINDS = {"cluster": SqliteStore, "ledger": LedgerStore}

NEWEST = '''"""A newest revision, as there may be one."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{before}"


def upgrade():
    """Change a table, fill it, and make another."""
    with op.batch_alter_table("{table}") as table:
        table.add_column(sa.Column("made_up", sa.Text, nullable=False, server_default="before"))
    op.create_table("made_up", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("INSERT INTO made_up VALUES (1), (2)")
'''


def newest_revision(kind: str, place: Path) -> list[tuple[ModuleType, str, object]]:
    """Write a made-up revision; return the module attributes that make stores upgrade to it."""
    module, latest = (cluster_sqlite, cluster_sqlite) if kind == "cluster" else (opening, schema)
    migrations = place / "migrations"
    shutil.copytree(module.MIGRATIONS, migrations)
    head = "LATEST" if kind == "cluster" else "HEAD"
    table = "projects" if kind == "cluster" else "series"
    text = NEWEST.format(table=table, before=getattr(latest, head))
    (migrations / "versions/rev_9999_made_up.py").write_text(text)
    return [(module, "MIGRATIONS", migrations), (latest, head, "9999")]


def content(path: Path) -> Iterator[str]:
    """Yield the whole database as SQL: its tables in their order, and their rows."""
    with closing(sqlite3.connect(path)) as connection:
        yield from connection.iterdump()


def opens_until_killed(kind: str, path: Path, after: int) -> bool:
    """Open a database in a child, killed after `after` statements; return False if it succeeded."""
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
    """Kill until one child succeeds; return the number of errors found."""
    kind, place, is_upgrade = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] == ["upgrade"]
    path, expected, old = (place / f"{name}.sqlite" for name in (kind, "expected", "old"))
    if is_upgrade:
        KINDS[kind](old).close()
        shutil.copy(old, expected)
        for module, name, value in newest_revision(kind, place):
            setattr(module, name, value)
    KINDS[kind](expected).close()
    expected_content, wrong = [*content(expected)], 0
    for statements in count(1):
        for left in place.glob(f"{path.name}*"):
            left.unlink()
        if is_upgrade:
            shutil.copy(old, path)
        if not opens_until_killed(kind, path, statements):
            print(f"{statements - 1} kills")
            return wrong
        try:
            KINDS[kind](path).close()
        except (Unavailable, sa.exc.SQLAlchemyError) as failed:
            print(f"after {statements} statements: {failed!r}")
            wrong += 1
        else:
            if invalid_reason(path) or [*content(path)] != expected_content:
                print(f"after {statements} statements it is not what it should be")
                wrong += 1
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
