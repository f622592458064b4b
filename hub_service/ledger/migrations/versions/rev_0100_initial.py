"""Series with running totals, spans that were watched, events, requests, and whose it all is."""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("opened", sa.Double, nullable=False),
        sa.Column("closed", sa.Double),
        sa.Column("node", sa.String(255), nullable=False, server_default=""),
    )
    op.create_index("series_by_scope", "series", ["kind", "project", "user", "workload", "device"])
    op.create_index("series_by_workload", "series", ["workload"])
    op.create_table(
        "totals",
        sa.Column(
            "series_id",
            sa.Integer,
            sa.ForeignKey("series.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("held_s", sa.Double, nullable=False),
        sa.Column("measured_s", sa.Double, nullable=False),
        sa.Column("allocated_s", sa.Double, nullable=False),
        sa.Column("used_s", sa.Double, nullable=False),
        sa.Column("idle_s", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("totals_by_age", "totals", ["level", "at"])
    op.create_table(
        "spans",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("ended", sa.Double, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("workload", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("events_by_workload", "events", ["workload", "at"])
    op.create_index("events_by_age", "events", ["at"])
    op.create_table(
        "requests",
        sa.Column("workload", sa.String(128), primary_key=True),
        sa.Column("submitted", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
    )
    op.create_index("requests_by_age", "requests", ["submitted"])
    # Who took the database last writes, and nobody before.
    op.create_table(
        "owner",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Forget the history."""
    for table in ("owner", "requests", "events", "spans", "totals", "series"):
        op.drop_table(table)
