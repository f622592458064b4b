"""A database that is being made or brought up to date is made whole, or stays what it was."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

import killed_upgrade
from runai.hub_service.clusters.local.store import SqliteStore
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger.store import Store

FILES = Path(__file__).with_name("files")
CASES = [("cluster", None), ("cluster", "7329469"), ("ledger", None)]
CASES += [("ledger", "7329469"), ("ledger", "2310d37")]
"""A first start, and a file of each earlier schema."""
OPENED = {"cluster": SqliteStore, "ledger": Store}


def unpacked(kind: str, old: str, path: Path) -> Path:
    with gzip.open(FILES / old / f"{kind}.sqlite.gz") as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    return path


@pytest.mark.parametrize(("kind", "old"), CASES)
def test_one_killed_after_any_statement_is_opened_by_the_next(kind, old, tmp_path):
    arguments = [kind, str(tmp_path)]
    if old:
        arguments.append(str(unpacked(kind, old, tmp_path / "old.sqlite")))

    told = subprocess.run(
        [sys.executable, killed_upgrade.__file__, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    kills = re.search(r"(\d+) kills", told.stdout)
    assert kills is not None
    assert int(kills[1]) > (0 if old else 8)


@pytest.fixture
def full_disk():
    """Every database takes no page more than it has."""

    @sa.event.listens_for(sa.Engine, "begin")
    def begin(connection):
        raw = connection.connection.cursor()
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={max(pages, 2)}")
        raw.close()

    yield
    if sa.event.contains(sa.Engine, "begin", begin):
        sa.event.remove(sa.Engine, "begin", begin)


@pytest.mark.parametrize(
    ("kind", "old"),
    [("cluster", None), ("ledger", None), ("ledger", "2310d37")],
    ids=["the cluster's first start", "the ledger's first start", "an upgrade of the ledger"],
)
def test_a_full_disk_leaves_what_was_there_and_says_so(kind, old, full_disk, request, tmp_path):
    path = tmp_path / f"{kind}.sqlite"
    if old:
        unpacked(kind, old, path)
    before = [*killed_upgrade.content(path)]

    with pytest.raises(Unavailable, match=r"could not be brought up to date: .*full\. It is as it"):
        OPENED[kind](path)

    assert [*killed_upgrade.content(path)] == before
