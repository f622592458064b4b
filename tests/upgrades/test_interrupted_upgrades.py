"""Creating or upgrading a database is atomic: it is complete, or nothing has changed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import sqlalchemy as sa

import killed_upgrade
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.wire.errors import Unavailable

KINDS = ["cluster", "ledger"]
STORE_CLASSES = {"cluster": SqliteStore, "ledger": LedgerStore}


@pytest.mark.parametrize("is_upgrade", [False, True], ids=["creation", "upgrade"])
@pytest.mark.parametrize("kind", KINDS)
def test_database_killed_in_creation_or_upgrade_is_opened_by_next_start(kind, is_upgrade, tmp_path):
    # Kills the process after the first statement, a new one after its second, and so on.
    completed = subprocess.run(
        [sys.executable, killed_upgrade.__file__, kind, str(tmp_path), *["upgrade"] * is_upgrade],
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr
    kills = re.search(r"(\d+) kills", completed.stdout)
    assert kills is not None
    assert int(kills[1]) > 8  # each took more than eight statements


@pytest.fixture
def full_disk():
    """Make every database full: no page can be added."""

    @sa.event.listens_for(sa.Engine, "begin")
    def begin(connection):
        raw = connection.connection.cursor()
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={max(pages, 2)}")
        raw.close()

    yield begin
    if sa.event.contains(sa.Engine, "begin", begin):
        sa.event.remove(sa.Engine, "begin", begin)


@pytest.mark.parametrize("is_upgrade", [False, True], ids=["creation", "upgrade"])
@pytest.mark.parametrize("kind", KINDS)
def test_database_upgrade_on_a_full_disk_fails_and_changes_no_data(
    kind, is_upgrade, full_disk, monkeypatch, tmp_path
):
    path = tmp_path / f"{kind}.sqlite"
    open_store = STORE_CLASSES[kind]
    if is_upgrade:
        sa.event.remove(sa.Engine, "begin", full_disk)
        open_store(path).close()
        sa.event.listen(sa.Engine, "begin", full_disk)
        for change in killed_upgrade.newest_revision(kind, tmp_path):
            monkeypatch.setattr(*change)
    before = [*killed_upgrade.content(path)]

    with pytest.raises(Unavailable, match=r"could not be brought up to date: .*full\. It is as it"):
        open_store(path)

    assert [*killed_upgrade.content(path)] == before
    sa.event.remove(sa.Engine, "begin", full_disk)  # there is room again
    open_store(path).close()
    has_new_table = "made_up" in "".join(killed_upgrade.content(path))
    assert has_new_table == is_upgrade
