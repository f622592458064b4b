"""Delete the rows of arrays that an earlier service had only stored in part.

It listed them in the history of the workload "", and hid them; now they would be shown.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete hidden rows with their history, and the lists of them."""
    connection = op.get_bind()
    lists = connection.execute(sa.text("SELECT text FROM history WHERE workload = ''")).scalars()
    hidden = [{"id": workload} for text in lists for workload in json.loads(text)]
    if hidden:
        connection.execute(sa.text("DELETE FROM workloads WHERE id = :id"), hidden)
        connection.execute(sa.text("DELETE FROM history WHERE workload = :id"), hidden)
    connection.execute(sa.text("DELETE FROM history WHERE workload = ''"))
