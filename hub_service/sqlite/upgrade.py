"""Atomic upgrade of a database by its missing alembic revisions, independent of the tables.

All revisions run in one transaction: a crash or a full disk leaves the database unchanged.
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from runai.hub_service.sqlite.files import newer
from runai.hub_service.wire.errors import Unavailable


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of a database's tables; None without tables."""
    try:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        found = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return None if found is None else str(found)
    finally:
        connection.rollback()


def not_upgraded(path: Path, failed: OperationalError) -> Unavailable:
    """Return the error for a file whose upgrade failed."""
    return Unavailable(
        f"{path} could not be brought up to date: {failed.orig}. It is as it was.",
        hint="Is there room on its disk, and does no other program use it? Where it says that a"
        " table exists already, somebody else has made it: restore a backup,"
        " or move the file away if it is new.",
        code="database_not_upgraded",
    )


def upgrade_file(path: Path, migrations: Path) -> None:
    """Run an SQLite file's missing revisions. No other transaction may be open on it.

    Raises:
        Unavailable: a newer version wrote it, or it could not be changed and is unchanged.
    """
    engine = sa.create_engine(
        URL.create("sqlite", database=str(path)), hide_parameters=True, poolclass=sa.pool.NullPool
    )
    # By default the driver opens a transaction before an INSERT, but none before a CREATE TABLE.
    sa.event.listen(engine, "connect", _leave_transactions_to_us)
    sa.event.listen(engine, "begin", _begin)
    try:
        upgrade(engine, migrations)
    except OperationalError as failed:
        raise not_upgraded(path, failed) from failed
    finally:
        engine.dispose()


def upgrade(engine: sa.Engine, migrations: Path) -> None:
    """Run the missing revisions of a database, in one transaction.

    Raises:
        Unavailable: a newer version wrote it.
    """
    # Imported on demand: alembic takes 0.1 s to import, and most starts need no upgrade.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as unknown:
        with engine.connect() as connection:
            found = revision(connection)
        name = engine.url.database or ""
        is_file = engine.dialect.name == "sqlite"
        raise newer(Path(name) if is_file else name, str(found)) from unknown


def _leave_transactions_to_us(connection: Any, _record: object) -> None:  # noqa: ANN401  the driver's own type
    """Make the driver open no transactions by itself (callback of SQLAlchemy)."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: sa.Connection) -> None:
    # A write lock from the start: a concurrent upgrade waits, and then finds nothing to do.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
