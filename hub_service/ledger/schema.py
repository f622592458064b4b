"""Tables of the ledger, for SQLite and PostgreSQL; `migrations` creates them.

Times are Unix seconds. A workload's history has no foreign key: it outlives the workload.
"""

import sqlalchemy as sa

HEAD = "0100"
"""Newest revision in `migrations`; a database at this revision needs no migration."""

metadata = sa.MetaData()

SCOPE = {"kind": 16, "project": 64, "user": 255, "workload": 128, "device": 128, "node": 255}
"""Lengths of the columns that identify a series."""

_OPEN = sa.text("closed IS NULL")


def _sums() -> list[sa.Column[float]]:
    names = ("held_s", "measured_s", "allocated_s", "used_s", "idle_s")
    return [sa.Column(name, sa.Double, nullable=False, server_default="0") for name in names]


# Running totals of each series. Each scope has one open series, so two services share its id.
series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    *(sa.Column(name, sa.String(length), nullable=False) for name, length in SCOPE.items()),
    sa.Column("opened", sa.Double, nullable=False),
    sa.Column("closed", sa.Double),
    *_sums(),
    sa.Index("series_open", *SCOPE, unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    sa.Index("series_by_workload", "workload"),
)

# Amounts in the window of `level` seconds that ends at `at`; each level contains all amounts.
samples = sa.Table(
    "samples",
    metadata,
    sa.Column(
        "series_id", sa.Integer, sa.ForeignKey("series.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    *_sums(),
    sa.Index("samples_by_age", "level", "at"),
    sqlite_with_rowid=False,  # clusters a series' rows: a range is one read
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("project", sa.String(64), nullable=False),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("workload", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("events_by_workload", "workload", "at"),
    sa.Index("events_by_age", "at"),
)

# Request of each workload that has started, and its number of starts.
# `asked` is one line of JSON (`runai.hub_service.model.request_codec`).
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("workload", sa.String(128), primary_key=True),
    sa.Column("submitted", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("asked", sa.Text, nullable=False),
    sa.Column("starts", sa.Integer, nullable=False),
    sa.Index("requests_by_age", "submitted"),
)
