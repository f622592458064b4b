"""Create the tables of workloads, their history, and projects."""

import sqlalchemy as sa
from alembic import op

revision = "0200"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the first tables."""
    op.create_table(
        "workloads",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(), nullable=False, unique=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("row", sa.Text(), nullable=False),
    )
    op.create_table(
        "history",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
    op.create_index("ix_history_workload", "history", ["workload"])
    op.create_table(
        "projects",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Drop the tables with all their rows."""
    op.drop_table("projects")
    op.drop_table("history")
    op.drop_table("workloads")
