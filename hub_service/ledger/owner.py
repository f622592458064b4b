"""Whose the database is: the ledger that took it last writes, one before it never again.

Numbers of series and spans are counted in memory, so what a leader that was frozen still wrote
would stand on those of the next one. Each taking is a higher epoch; each write asks for its own in
its transaction, and waits for no frozen one for longer than is said here. Called by `store`.
"""

import sqlalchemy as sa

from runai.hub_service.ledger import schema

FROZEN_S = 3
"""A transaction that says nothing for so long is ended by the server: its process may be frozen."""

WAITS_S = 6
"""Who waits for another's transaction gives up after as long."""


class Taken(Exception):
    """Another ledger has taken the database since: nothing is written to it any more."""


def take(connection: sa.Connection) -> int:
    """Make the database ours, from this transaction's end on; return our epoch."""
    _wait_for_nobody_frozen(connection)
    insert = schema.insert_into(schema.owner, connection.dialect.name).values(id=1, epoch=1)
    taken = insert.on_conflict_do_update(
        index_elements=["id"], set_={"epoch": schema.owner.c.epoch + 1}
    )
    epoch: int = connection.execute(taken.returning(schema.owner.c.epoch)).scalar_one()
    return epoch


def claim(connection: sa.Connection, epoch: int) -> None:
    """Make sure, first in a transaction that writes, that it is ours until that ends.

    A change and no question: it keeps everybody from taking it meanwhile, in both databases.

    Raises:
        Taken: it is somebody else's.
    """
    _wait_for_nobody_frozen(connection)
    ours = sa.update(schema.owner).where(schema.owner.c.epoch == epoch).values(epoch=epoch)
    if connection.execute(ours).rowcount != 1:
        raise Taken


def _wait_for_nobody_frozen(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's patience is its connections'
        idle = f"SET LOCAL idle_in_transaction_session_timeout = '{FROZEN_S}s'"
        connection.execute(sa.text(idle))
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{WAITS_S}s'"))
