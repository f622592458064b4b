"""A copy of an SQLite file is one instant of it, and ends whatever is written meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runai.hub_service.sqlite import files

ROW_COUNT = 200
ROW_TEXT = "x" * 4000
"""One page of the database."""


@pytest.fixture(params=["wal", "delete"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "source.sqlite", isolation_level=None)) as opened:
        opened.execute(f"PRAGMA journal_mode={request.param}")
        opened.execute("CREATE TABLE rows (text)")
        opened.executemany("INSERT INTO rows VALUES (?)", [(ROW_TEXT,)] * ROW_COUNT)
        yield opened


def test_sqlite_copy_during_constant_writes_equals_the_file_at_its_start(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "PAGES_AT_ONCE", 10)  # so that there are many steps
    copied_pages = []

    def write_after_step(name: str, copied: int, pages: int) -> None:
        copied_pages.append(copied)
        assert len(copied_pages) <= pages, "the copy begins anew after each write"
        source.execute("INSERT INTO rows VALUES ('later')")

    files.copy(tmp_path / "source.sqlite", tmp_path / "copy.sqlite", write_after_step)

    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        [(rows_in_copy, largest_text)] = copy.execute("SELECT count(*), max(text) FROM rows")
        [(journal_mode,)] = copy.execute("PRAGMA journal_mode")
    [(rows_in_source,)] = source.execute("SELECT count(*) FROM rows")
    assert rows_in_copy == ROW_COUNT
    assert largest_text == ROW_TEXT
    assert journal_mode == "delete"
    assert copied_pages == sorted(set(copied_pages))  # each step copies more
    assert rows_in_source == ROW_COUNT + len(copied_pages)  # one row a step
