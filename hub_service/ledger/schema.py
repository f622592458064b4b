"""The ledger's tables, for SQLite and PostgreSQL alike; `migrations` makes them.

Times are Unix seconds. The history of a workload has no foreign key: it survives the workload.
"""

from functools import cache

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Insert,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import postgresql, sqlite

HEAD = "0100"
"""The newest revision in `migrations`; a database that is there already needs no migration."""

metadata = MetaData()

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("project", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("device", String(128), nullable=False),
    Column("opened", Double, nullable=False),
    Column("closed", Double),
    Column("node", String(255), nullable=False, server_default=""),
    Index("series_by_scope", "kind", "project", "user", "workload", "device"),
    Index("series_by_workload", "workload"),
)

# Running totals at `at`, a multiple of 10 s. `level` is the coarsest grid that the row stands for:
# retention drops the finer rows, and what is left still holds the totals.
totals = Table(
    "totals",
    metadata,
    Column("series_id", Integer, ForeignKey("series.id", ondelete="CASCADE"), primary_key=True),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("level", SmallInteger, nullable=False),
    Column("held_s", Double, nullable=False),
    Column("measured_s", Double, nullable=False),
    Column("allocated_s", Double, nullable=False),
    Column("used_s", Double, nullable=False),
    Column("idle_s", Double, nullable=False),
    Index("totals_by_age", "level", "at"),
    sqlite_with_rowid=False,  # a series' rows lie together: its range is one read
)

# When the ledger watched: outside of these there is a gap, inside what has no row is a zero.
spans = Table(
    "spans",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("started", Double, nullable=False),
    Column("ended", Double, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("project", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("workload", String(128), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Index("events_by_workload", "workload", "at"),
    Index("events_by_age", "at"),
)

# What each workload asked for when it was last seen whole, and how often it was started.
# `asked` is a line of JSON (`runai.hub_service.past_requests`).
requests = Table(
    "requests",
    metadata,
    Column("workload", String(128), primary_key=True),
    Column("submitted", BigInteger, primary_key=True, autoincrement=False),
    Column("asked", Text, nullable=False),
    Column("starts", Integer, nullable=False),
    Index("requests_by_age", "submitted"),
)

# One row, of who may write (`owner`).
owner = Table(
    "owner",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)


def insert_into(table: Table, dialect: str) -> postgresql.Insert | sqlite.Insert:
    """Return what writes new rows, of a kind that can say what of those that are there."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@cache
def upsert_into(table: Table, dialect: str) -> Insert:
    """Return what writes rows anew, or over those of their keys; to make it takes long."""
    insert = insert_into(table, dialect)
    keys = [column.name for column in table.primary_key]
    changes = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    statement: Insert = insert.on_conflict_do_update(index_elements=keys, set_=changes)
    return statement
