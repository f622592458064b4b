"""Rows of an unknown shape are refused; every new shape has a new number.

`rows.json` has, for each number, the shape of rows and projects. For a new field or a new name of
a state, raise `ROWS` in the local cluster's store, add the new shape under the new number
(`python tests/upgrades/test_rows.py` prints it), and add the files of the release before.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from runai.embedded.backup.backups import back_up
from runai.embedded.backup.restore import restore
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_sqlite import ROWS, SqliteStore
from runai.hub_service.model.records import ProjectRecord, ProjectSpec, WorkloadRecord
from runai.hub_service.wire.errors import Unavailable

GOLDEN = Path(__file__).with_name("rows.json")


def shapes() -> dict[str, list[str]]:
    """Return the stored shape of each class: fields, members, and allowed words."""
    found: dict[str, list[str]] = {}

    def collect(type_: Any) -> Iterator[str]:
        """Record the classes inside a type; yield the words that the type allows."""
        if get_origin(type_) is Literal:
            yield from map(str, get_args(type_))
            return
        for part in get_args(type_):
            yield from collect(part)
        if not isinstance(type_, type) or type_.__name__ in found:
            return
        if issubclass(type_, Enum):
            found[type_.__name__] = [str(member.value) for member in type_]
        elif is_dataclass(type_):
            lines = found[type_.__name__] = []
            hints = get_type_hints(type_)
            for field in fields(type_):
                words = [*collect(hints[field.name])]
                lines.append(f"{field.name}: {' '.join(words)}" if words else field.name)

    assert not [*collect(WorkloadRecord), *collect(ProjectSpec)]
    return dict(sorted(found.items()))


def test_changed_shape_of_database_rows_requires_a_new_rows_number():
    shape_by_rows_number = json.loads(GOLDEN.read_text())

    assert [*shape_by_rows_number] == [str(number + 1) for number in range(ROWS)]
    assert shape_by_rows_number[str(ROWS)] == shapes(), "raise ROWS: the stored shape differs"


@pytest.fixture
def platform(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    store = SqliteStore(directory.root / "cluster.sqlite")
    store.save(projects=[ProjectRecord(ProjectSpec("vision"), 1.0)])
    store.close()
    return directory


def rows_number(path: Path, new_number: int | None = None) -> int:
    with closing(sqlite3.connect(path)) as connection:
        if new_number is not None:
            connection.execute(f"PRAGMA user_version = {new_number}")
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_database_rows_of_a_newer_version_are_refused_by_their_rows_number(platform):
    path = platform.root / "cluster.sqlite"
    rows_number(path, new_number=ROWS + 1)
    before = path.read_bytes()

    with pytest.raises(Unavailable, match=f"with rows of the shape {ROWS + 1}, which") as raised:
        SqliteStore(path)

    assert "A newer version wrote it" in raised.value.hint
    assert path.read_bytes() == before


def test_database_rows_of_an_older_version_are_opened_and_renumbered(platform):
    path = platform.root / "cluster.sqlite"
    assert rows_number(path) == ROWS
    rows_number(path, new_number=0)

    store = SqliteStore(path)

    assert [project.spec.name for project in store.projects()] == ["vision"]
    store.close()
    assert rows_number(path) == ROWS


def test_backup_has_the_rows_number_and_restore_refuses_newer_rows(platform, tmp_path):
    backup = back_up(platform, tmp_path / "backups")
    assert rows_number(backup / "cluster.sqlite") == ROWS
    rows_number(backup / "cluster.sqlite", new_number=ROWS + 1)

    with pytest.raises(Unavailable, match=f"made by version .* rows of the shape {ROWS + 1}"):
        restore(platform, backup)

    assert rows_number(platform.root / "cluster.sqlite") == ROWS


if __name__ == "__main__":
    json.dump({str(ROWS): shapes()}, sys.stdout, indent=1)
