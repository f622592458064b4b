"""Open the ledger's database, a file or a server's, and bring its tables up to date.

Knows addresses, drivers and migrations; what is in the tables is `store`'s.
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from runai.hub_service.database_files import check, newer
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger import schema

__all__ = ["ledger_url", "opened"]

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
        if _revision(engine) != schema.HEAD:
            _migrate(engine)
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


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return None if version is None else str(version)


def _migrate(engine: sa.Engine) -> None:
    # Only here: alembic costs a tenth of a second, and most starts have nothing to migrate.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as unknown:
        raise newer(engine.url.database or "", str(_revision(engine))) from unknown


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401  the driver's own type
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()
