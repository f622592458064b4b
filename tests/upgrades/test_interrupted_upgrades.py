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
OPENED = {"cluster": SqliteStore, "ledger": LedgerStore}


@pytest.mark.parametrize("again", [False, True], ids=["made", "brought up to date"])
@pytest.mark.parametrize("kind", KINDS)
def test_database_killed_in_creation_or_upgrade_is_opened_by_next_start(kind, again, tmp_path):
    completed = subprocess.run(
        [sys.executable, killed_upgrade.__file__, kind, str(tmp_path), *["again"] * again],
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr
    kills = re.search(r"(\d+) kills", completed.stdout)
    assert kills is not None
    assert int(kills[1]) > 8


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


@pytest.mark.parametrize("again", [False, True], ids=["made", "brought up to date"])
@pytest.mark.parametrize("kind", KINDS)
def test_database_upgrade_on_a_full_disk_fails_and_changes_no_data(
    kind, again, full_disk, monkeypatch, tmp_path
):
    path = tmp_path / f"{kind}.sqlite"
    if again:
        sa.event.remove(sa.Engine, "begin", full_disk)
        OPENED[kind](path).close()
        sa.event.listen(sa.Engine, "begin", full_disk)
        for change in killed_upgrade.newest_revision(kind, tmp_path):
            monkeypatch.setattr(*change)
    before = [*killed_upgrade.content(path)]

    with pytest.raises(Unavailable, match=r"could not be brought up to date: .*full\. It is as it"):
        OPENED[kind](path)

    assert [*killed_upgrade.content(path)] == before
    sa.event.remove(sa.Engine, "begin", full_disk)
    OPENED[kind](path).close()
    assert ("made_up" in "".join(killed_upgrade.content(path))) == again
