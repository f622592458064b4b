"""Broken databases and other versions are refused by name, with the next step.

From the first release on, files of each release are read here, too.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.sqlite.files import newer
from runai.hub_service.wire.errors import Unavailable

NEWER = (
    "9999",
    "has the schema 9999, which this version does not know",
    "A newer version wrote it",
)
EARLIER = "was written before the first release"


@pytest.mark.parametrize(
    ("name", "revision", "message", "hint"),
    [
        pytest.param("cluster.sqlite", *NEWER, id="newer queue"),
        pytest.param("ledger.sqlite", *NEWER, id="newer ledger"),
        pytest.param(
            "cluster.sqlite", "0101", EARLIER, "--new-queue renames the queue", id="earlier queue"
        ),
        pytest.param(
            "ledger.sqlite",
            "0001",
            EARLIER,
            "{data_dir}.old, then `runai up` again",
            id="earlier ledger",
        ),
    ],
)
def test_database_of_an_unsupported_schema_version_is_refused_with_a_hint(
    name, revision, message, hint, tmp_path
):
    path = tmp_path / name
    open_store = SqliteStore if name == "cluster.sqlite" else LedgerStore
    open_store(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()
    before = path.read_bytes()

    with pytest.raises(Unavailable, match=f"{name} {message}") as raised:
        open_store(path)

    assert hint.format(data_dir=tmp_path) in raised.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["cluster.sqlite", "ledger.sqlite"])
@pytest.mark.parametrize("damage", ["no database", "torn page"])
def test_broken_database_is_refused_by_name_with_a_restore_hint(name, damage, tmp_path):
    path = tmp_path / name
    open_store = SqliteStore if name == "cluster.sqlite" else LedgerStore
    open_store(path).close()
    content = bytearray(path.read_bytes())
    if damage == "no database":
        content[:16] = b"something other\0"  # in place of SQLite's magic bytes
    else:
        page_bytes = 4096
        content[page_bytes : 3 * page_bytes] = b"\x5a" * (2 * page_bytes)
    path.write_bytes(content)

    with pytest.raises(Unavailable, match=f"{name} is broken") as raised:
        open_store(path)

    assert "runai restore" in raised.value.hint
    assert path.read_bytes() == content


def test_hint_for_a_too_old_backup_suggests_a_different_backup():
    refused = newer("cluster.sqlite of monday", "0001")

    assert refused.code == "database_older"
    assert "name another backup" in refused.hint
    assert "mv" not in refused.hint.split()
