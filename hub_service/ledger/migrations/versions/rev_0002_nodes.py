"""Series of nodes: what is held and used on each machine."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Give each series a node; those that are there are of none."""
    with op.batch_alter_table("series") as series:
        series.add_column(sa.Column("node", sa.String(255), nullable=False, server_default=""))


def downgrade() -> None:
    """Forget what was of nodes."""
    op.execute("DELETE FROM totals WHERE series_id IN (SELECT id FROM series WHERE kind = 'node')")
    op.execute("DELETE FROM series WHERE kind = 'node'")
    with op.batch_alter_table("series") as series:
        series.drop_column("node")
