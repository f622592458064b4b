"""Whether what is installed here knows what is in a platform's databases, without changing them.

Knows which revisions are whose, JupyterHub's too, and that the cluster's rows have a number of
their own. Called by `restoring` and `runai doctor`; a store looks itself when it opens a file.
"""

import sqlite3
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

from runai.hub_service.clusters.local import store
from runai.hub_service.database_files import opened_to_read, unknown_revision
from runai.hub_service.ledger import opening


def unknown_schema(database: Path) -> str:
    """Return a database's schema where nothing here knows it; "" where it is known, or has none."""
    revisions = _revisions(database.name)
    # What cannot be read is for `database_files.trouble` to say.
    with suppress(sqlite3.Error), closing(opened_to_read(database)) as connection:
        if revisions is not None and (found := unknown_revision(database, revisions)):
            return found
        (rows,) = connection.execute("PRAGMA user_version").fetchone()
        if database.name == "cluster.sqlite" and rows > store.ROWS:
            return f"{store.LATEST} with rows of the shape {rows}"
    return ""


def _revisions(name: str) -> Path | None:
    if name == "jupyterhub.sqlite":
        found = find_spec("jupyterhub")  # not imported: that takes seconds
        if found is None or found.origin is None:
            return None
        return Path(found.origin).parent / "alembic/versions"
    return (store.MIGRATIONS if name == "cluster.sqlite" else opening.MIGRATIONS) / "versions"
