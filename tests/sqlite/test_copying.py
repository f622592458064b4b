"""A copy of an SQLite file is one instant of it, and ends whatever is written meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runai.hub_service.sqlite import files

ROWS = 200


@pytest.fixture(params=["wal", "delete"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "source.sqlite", isolation_level=None)) as opened:
        opened.execute(f"PRAGMA journal_mode={request.param}")
        opened.execute("CREATE TABLE rows (text)")
        opened.executemany("INSERT INTO rows VALUES (?)", [("x" * 4000,)] * ROWS)
        yield opened


def test_sqlite_copy_during_constant_writes_equals_the_file_at_its_start(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "PAGES_AT_ONCE", 10)
    steps = []

    def write(name: str, copied: int, pages: int) -> None:
        steps.append(copied)
        assert len(steps) <= pages, "begun anew after each write"
        source.execute("INSERT INTO rows VALUES ('later')")

    files.copy(tmp_path / "source.sqlite", tmp_path / "copy.sqlite", write)

    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        assert copy.execute("SELECT count(*), max(text) FROM rows").fetchone() == (
            ROWS,
            "x" * 4000,
        )
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert steps == sorted(set(steps))
    assert source.execute("SELECT count(*) FROM rows").fetchone() == (ROWS + len(steps),)
