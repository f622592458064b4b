"""Connection to the ledger's database, an SQLite file or a PostgreSQL server, and its migration."""

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
"""Timeout of a connection; a server that needs longer counts as unreachable."""
PINGED_WITHIN_S = 2

_TEMPORARY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED}
"""Temporary errors of a file: another writer, or a full or failing disk."""


def ledger_url(database: str | Path) -> URL:
    """Return the SQLAlchemy URL of a file, or parse an address."""
    if isinstance(database, Path):
        return URL.create("sqlite", database=str(database))
    return make_url(database)


def engine_of(database: str | Path) -> sa.Engine:
    """Return the engine of a database; check a file now, connect to a server later.

    Raises:
        InvalidRequest: `database` is not an address.
        Unavailable: the file is broken.
    """
    if isinstance(database, Path):
        check(database)
    try:
        url = ledger_url(database)
    except (sa.exc.ArgumentError, ValueError):
        # Without the parser's message: it contains the password.
        raise InvalidRequest(
            "RUNAI_LEDGER is no address of a PostgreSQL database.",
            hint="It looks like postgresql://USER:PASSWORD@HOST/DATABASE; unset, a file is used.",
        ) from None
    is_server = url.get_backend_name() == "postgresql"
    connect_args = {"connect_timeout": ANSWERS_WITHIN_S} if is_server else {}
    # Pre-ping replaces connections that a server's restart has closed, so that no query fails.
    engine = sa.create_engine(
        url, hide_parameters=True, connect_args=connect_args, pool_pre_ping=is_server
    )
    if not is_server:
        sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def prepare(engine: sa.Engine) -> None:
    """Create or migrate the tables if needed.

    Raises:
        Unavailable: a newer version wrote the database.
    """
    with engine.connect() as connection:
        is_current = revision(connection) == schema.HEAD
    if is_current:
        return
    if engine.dialect.name == "postgresql":
        upgrade(engine, MIGRATIONS)
    else:
        upgrade_file(Path(engine.url.database or ""), MIGRATIONS)


@contextmanager
def convert_errors(engine: sa.Engine) -> Iterator[None]:
    """Convert connection errors to `Unavailable`, and dispose of the engine.

    Raises:
        Unavailable: `history_away` if a later try may succeed; `history_refused` if the server
            answers and refuses this login.
    """
    try:
        yield
    except Unavailable:  # a broken database, or one of a newer version
        engine.dispose()
        raise
    except sa.exc.OperationalError as error:
        engine.dispose()
        is_server = engine.dialect.name == "postgresql"
        if not is_server and getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in _TEMPORARY:
            raise
        # Without the driver's message: it contains the address.
        if is_server and _refuses_login(engine):
            raise Unavailable(
                "The database of the history (RUNAI_LEDGER) answers and refuses the connection.",
                hint="Are the user, the password and the name of the database right?",
                code="history_refused",
            ) from error
        raise Unavailable(
            "The database of the history (RUNAI_LEDGER) does not answer.",
            hint="Does it run, and may this machine connect? Jobs go on meanwhile.",
            code="history_away",
        ) from error


def _refuses_login(engine: sa.Engine) -> bool:
    """Return True if the server is up and refuses our login a second time."""
    import psycopg  # noqa: PLC0415  needed for PostgreSQL only

    _, arguments = engine.dialect.create_connect_args(engine.url)
    options = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    # Without SQLAlchemy's own arguments, which libpq does not know.
    libpq_arguments = {name: value for name, value in arguments.items() if name in options}
    target = psycopg.conninfo.make_conninfo(
        "", **{**libpq_arguments, "connect_timeout": PINGED_WITHIN_S}
    )
    # A ping needs no login; a server that starts or stops answers it with another status.
    if psycopg.pq.PGconn.ping(target.encode()) != psycopg.pq.Ping.OK:
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
