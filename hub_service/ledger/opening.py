"""Open the ledger's database, a file or a server's, and bring its tables up to date.

Knows addresses, drivers and migrations; what is in the tables is `store`'s.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from runai.hub_service.ledger import schema
from runai.hub_service.sqlite.files import check
from runai.hub_service.sqlite.upgrade import revision, upgrade, upgrade_file
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

MIGRATIONS = Path(__file__).with_name("migrations")
ANSWERS_WITHIN_S = 5
"""A server that does not answer a connection within this time counts as away."""
PINGED_WITHIN_S = 2

_PASSES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED}
"""Of a file: another writes it, or its disk is full or does not answer."""


def ledger_url(database: str | Path) -> URL:
    """Return SQLAlchemy's address of a file, or of what already is an address."""
    if isinstance(database, Path):
        return URL.create("sqlite", database=str(database))
    return make_url(database)


def engine_of(database: str | Path) -> sa.Engine:
    """Return what connects to it; a file is looked at, a server is not asked for anything yet.

    Raises:
        InvalidRequest: it is no address.
        Unavailable: it is a file that is broken.
    """
    if isinstance(database, Path):
        check(database)
    try:
        url = ledger_url(database)
    except (sa.exc.ArgumentError, ValueError):
        # Not what is wrong with it: that shows the password.
        raise InvalidRequest(
            "RUNAI_LEDGER is no address of a PostgreSQL database.",
            hint="It looks like postgresql://USER:PASSWORD@HOST/DATABASE; unset, a file is used.",
        ) from None
    is_server = url.get_backend_name() == "postgresql"
    patience = {"connect_timeout": ANSWERS_WITHIN_S} if is_server else {}
    # A connection that a restart has closed is opened anew, so that no question fails for it.
    engine = sa.create_engine(
        url, hide_parameters=True, connect_args=patience, pool_pre_ping=is_server
    )
    if not is_server:
        sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def prepare(engine: sa.Engine) -> None:
    """Make or migrate its tables if need be.

    Raises:
        Unavailable: a newer version wrote it.
    """
    with engine.connect() as connection:
        is_of_today = revision(connection) == schema.HEAD
    if is_of_today:
        return
    if engine.dialect.name == "postgresql":
        upgrade(engine, MIGRATIONS)
    else:
        upgrade_file(Path(engine.url.database or ""), MIGRATIONS)


@contextmanager
def said_why(engine: sa.Engine) -> Iterator[None]:
    """Say of a database that cannot be opened whether it is away, or will not have us.

    Raises:
        Unavailable: `history_away` of one that may well be there in a moment, `history_refused` of
            a server that answers and lets nobody in who comes so.
    """
    try:
        yield
    except Unavailable:  # it is broken, or newer than this program
        engine.dispose()
        raise
    except sa.exc.OperationalError as failed:
        engine.dispose()
        is_server = engine.dialect.name == "postgresql"
        if not is_server and getattr(failed.orig, "sqlite_errorcode", 0) & 0xFF not in _PASSES:
            raise
        # Not what the driver says: it shows the address.
        if is_server and _refuses(engine):
            raise Unavailable(
                "The database of the history (RUNAI_LEDGER) answers and refuses the connection.",
                hint="Are the user, the password and the name of the database right?",
                code="history_refused",
            ) from failed
        raise Unavailable(
            "The database of the history (RUNAI_LEDGER) does not answer.",
            hint="Does it run, and may this machine connect? Jobs go on meanwhile.",
            code="history_away",
        ) from failed


def _refuses(engine: sa.Engine) -> bool:
    """Tell whether a server is up and does not let us in, also when it is asked once more."""
    import psycopg  # noqa: PLC0415  only where it is the database

    _, told = engine.dialect.create_connect_args(engine.url)
    options = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    told = {name: value for name, value in told.items() if name in options}  # SQLAlchemy's are not
    asked = psycopg.conninfo.make_conninfo("", **{**told, "connect_timeout": PINGED_WITHIN_S})
    # A server answers a ping without a login, too; one that starts or ends says so.
    if psycopg.pq.PGconn.ping(asked.encode()) != psycopg.pq.Ping.OK:
        return False
    try:
        engine.connect().close()
    except sa.exc.OperationalError:
        return True
    return False


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401  the driver's own type
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()
