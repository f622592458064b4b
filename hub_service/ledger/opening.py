"""Open the ledger's database, a file or a server's, and bring its tables up to date.

Knows addresses, drivers and migrations; what is in the tables is `store`'s.
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from runai.hub_service.database_files import check
from runai.hub_service.database_upgrade import revision, upgrade, upgrade_file
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger import schema

__all__ = ["MIGRATIONS", "ledger_url", "opened"]

MIGRATIONS = Path(__file__).with_name("migrations")
ANSWERS_WITHIN_S = 5
"""A server that says nothing to who connects is taken for away."""


def ledger_url(database: str | Path) -> URL:
    """Return SQLAlchemy's address of a file, or of what already is an address."""
    if isinstance(database, Path):
        return URL.create("sqlite", database=str(database))
    return make_url(database)


def opened(database: str | Path) -> sa.Engine:
    """Open it, making or migrating its tables if need be.

    Raises:
        Unavailable: it is a file that is broken, or a server that does not answer, or a newer
            version wrote it.
    """
    if isinstance(database, Path):
        check(database)
    url = ledger_url(database)
    is_server = url.get_backend_name() == "postgresql"
    patience = {"connect_timeout": ANSWERS_WITHIN_S} if is_server else {}
    engine = sa.create_engine(url, hide_parameters=True, connect_args=patience)
    if not is_server:
        sa.event.listen(engine, "connect", _prepare_sqlite)
    try:
        with engine.connect() as connection:
            is_of_today = revision(connection) == schema.HEAD
        if not is_of_today and is_server:
            upgrade(engine, MIGRATIONS)
        elif not is_of_today:
            upgrade_file(Path(url.database or ""), MIGRATIONS)
    except Unavailable:
        engine.dispose()
        raise
    except sa.exc.OperationalError as away:
        engine.dispose()
        if not is_server:
            raise
        # Not what the driver says: it shows the address.
        raise Unavailable(
            "The database of the history (RUNAI_LEDGER) does not answer.",
            hint="Does it run, and may this machine connect? Jobs go on meanwhile.",
            code="history_away",
        ) from away
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401  the driver's own type
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()
