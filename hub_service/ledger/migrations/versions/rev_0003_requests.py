"""What each workload asked for: a replay of the past decides by it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; what ran before is not known to have asked for anything."""
    op.create_table(
        "requests",
        sa.Column("workload", sa.String(128), primary_key=True),
        sa.Column("submitted", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
    )
    op.create_index("requests_by_age", "requests", ["submitted"])


def downgrade() -> None:
    """Forget what was asked for."""
    op.drop_table("requests")
