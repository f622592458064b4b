"""Series with their totals, samples of them by windows of time, events and requests."""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


SCOPE = {"kind": 16, "project": 64, "user": 255, "workload": 128, "device": 128, "node": 255}
SUMS = ("held_s", "measured_s", "allocated_s", "used_s", "idle_s")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.String(length), nullable=False) for name, length in SCOPE.items()),
        sa.Column("opened", sa.Double, nullable=False),
        sa.Column("closed", sa.Double),
        *(sa.Column(name, sa.Double, nullable=False, server_default="0") for name in SUMS),
    )
    op.create_index(
        "series_open",
        "series",
        list(SCOPE),
        unique=True,
        sqlite_where=sa.text("closed IS NULL"),
        postgresql_where=sa.text("closed IS NULL"),
    )
    op.create_index("series_by_workload", "series", ["workload"])
    op.create_table(
        "samples",
        sa.Column(
            "series_id",
            sa.Integer,
            sa.ForeignKey("series.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Double, nullable=False, server_default="0") for name in SUMS),
        sqlite_with_rowid=False,
    )
    op.create_index("samples_by_age", "samples", ["level", "at"])
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


def downgrade() -> None:
    """Forget the history."""
    for table in ("requests", "events", "samples", "series"):
        op.drop_table(table)
