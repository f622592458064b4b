"""Whose the database is: who took it last writes, and nobody before."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; nobody has taken it yet."""
    op.create_table(
        "owner",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Forget whose it is."""
    op.drop_table("owner")
