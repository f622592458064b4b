"""Workloads in the local cluster's SQLite: read back unchanged after any restart."""

from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st

import runai.hub_service.clusters.local.store as store_module
from runai.hub_service.clusters.local.store.cluster_sqlite import LATEST, SqliteStore, metadata
from runai.hub_service.clusters.states.lifecycle import exited, running, started, stopped
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.clusters.states.user_actions import submitted
from runai.hub_service.clusters.states.worker_bounds import scaled
from runai.hub_service.model.records import (
    ElasticState,
    Grant,
    HistoryEvent,
    Process,
    ProjectRecord,
    ProjectSpec,
    StateReason,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare


def _row(name: str = "exp", **fields: object) -> WorkloadRecord:
    spec = WorkloadSpec("vision", name, "ana", "job", ("train", "--lr", "0.1"), **fields)  # type: ignore[arg-type]
    row = submitted(spec, now=1.5, checkpoint_dir="/c", log_dir="/l", uid=f"uid of {name}").row
    assert row is not None
    return row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.sqlite"


def test_stored_workload_row_is_read_back_unchanged_in_any_state(path):
    row = _row(env={"A": "1"}, source='print("{")', gpus=MilliGpu(500))
    grant = Grant(0, "box", (DeviceShare(0, MilliGpu(500)),))
    rows = [row]
    for change in (
        lambda row: started(row, [grant], now=2.0, master_port=5),
        lambda row: running(row, 0, Process(7, 1.25), now=3.0),
        lambda row: stopped(row, [0], StateReason("reclaimed", "…", "R2", "x"), now=4.0),
        lambda row: exited(row, 0, ExitStatus(143), now=5.0),
    ):
        after = change(rows[-1]).row
        assert after is not None
        rows.append(after)

    for expected in rows:
        store = SqliteStore(path)
        store.save([expected])
        store.close()
        store = SqliteStore(path)
        assert [expected] == list(store.rows())
        store.close()


@pytest.mark.parametrize("name", ["quest?ion", "a%20b", "100%", "a#b", "x;y&z='", "ü \\"])
def test_workload_database_is_created_in_a_directory_of_any_name(tmp_path, name):
    directory = tmp_path / name
    directory.mkdir()

    for rows in ([], [_row()]):
        store = SqliteStore(directory / "cluster.sqlite")
        assert list(store.rows()) == rows
        store.save([_row()])
        store.close()

    assert [*tmp_path.iterdir()] == [directory]


def test_scaled_number_of_elastic_workers_is_read_back_from_the_store(path):
    row = _row(elastic=True, workers=2)
    after = scaled(row, workers=4, min_workers=2, by="ana", now=2.0).row
    assert after is not None
    store = SqliteStore(path)
    store.save([row])
    store.save([after])
    store.close()

    store = SqliteStore(path)
    [restored] = store.rows()
    store.close()
    assert restored == after
    assert (restored.spec.workers, restored.spec.min_workers) == (4, 2)
    assert len(restored.workers) == 4


def test_elastic_job_that_reported_saves_is_checkpointing_after_a_service_restart(path):
    row = _row("elastic", workers=2, min_workers=1, elastic=True)
    row = replace(row, elastic=ElasticState(saves=True))
    store = SqliteStore(path)
    store.save([row])
    store.close()

    store = SqliteStore(path)

    assert [restored.saves for restored in store.rows()] == [True]
    store.close()


def test_source_and_environment_text_of_a_job_is_read_back_from_the_store_unchanged(path):
    store = SqliteStore(path)

    @settings(deadline=None, max_examples=100)
    @given(source=st.text(), env=st.dictionaries(st.text(), st.text()))
    def save_and_read_back(source: str, env: dict[str, str]) -> None:
        row = _row(source=source, env=env)
        store.save([row])
        assert [row] == list(store.rows())
        store.save(deleted=[row.id])

    save_and_read_back()
    store.close()


def test_workload_rows_are_read_in_the_order_of_submission(path):
    store = SqliteStore(path)
    first, second = _row("b"), _row("a")
    store.save([first])
    store.save([second])
    store.save([first])

    assert [row.id for row in store.rows()] == ["vision/b", "vision/a"]
    store.close()


def test_workload_history_is_deleted_with_its_workload(path):
    store = SqliteStore(path)
    row, event = _row(), HistoryEvent(1.0, "queued", "submitted")
    store.save([row], events=[(row.id, event)])
    assert [event] == list(store.history(row.id))

    store.save(deleted=[row.id])

    assert list(store.rows()) == []
    assert list(store.history(row.id)) == []
    store.close()


def files_with(text: str, folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if text.encode() in file.read_bytes()]


@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "beside a reader"])
def test_values_of_a_deleted_workload_are_in_no_file_of_the_store(path, is_read):
    store, planted = SqliteStore(path), "planted-7d1f"
    rows = [
        _row(f"exp{n}", env={"TOKEN": f"{planted}{'x' * 5000}"}, source=planted) for n in range(9)
    ]
    store.save(rows)
    store.save([replace(row, attempts=1) for row in rows])
    reader = sqlite3.connect(path)
    if is_read:  # a backup, or the doctor
        reader.execute("BEGIN").execute("SELECT * FROM workloads").fetchall()

    store.save(deleted=[row.id for row in rows])

    reader.close()
    if is_read:
        store.save([_row("later")])
    assert files_with(planted, path.parent) == []
    store.close()


def test_first_write_after_a_crash_erases_what_was_deleted_before_it(path, monkeypatch):
    store, planted = SqliteStore(path), "planted-7d1f"
    row = _row(source=planted)
    store.save([row])
    monkeypatch.setattr(store, "_cut_log", lambda: None)  # the crash comes first
    store.save(deleted=[row.id])
    assert files_with(planted, path.parent)

    later = SqliteStore(path)
    later.save([_row("later")])

    assert files_with(planted, path.parent) == []
    later.close()
    store.close()


def test_projects_are_read_from_the_store_oldest_first_with_their_age(path):
    store = SqliteStore(path)
    old = ProjectRecord(ProjectSpec("z", quota=None, members=("ana",)), 1.0)
    new = ProjectRecord(ProjectSpec("a", parent="z", node_types_build=("dgx",)), 2.0)
    store.save(projects=[old, new])
    changed = ProjectRecord(ProjectSpec("z", quota=MilliGpu(2500)), 1.0)
    store.save(projects=[changed])

    assert [changed, new] == list(store.projects())
    store.save(deleted_projects=["z"])
    assert [new] == list(store.projects())
    store.close()


def test_failed_save_of_workload_rows_stores_no_part_of_it(path):
    store = SqliteStore(path)
    with pytest.raises(sa.exc.IntegrityError):
        store.save([_row()], events=[("vision/exp", HistoryEvent(1.0, "queued", None))])  # type: ignore[arg-type]

    assert list(store.rows()) == []
    store.save([_row()])
    assert len(list(store.rows())) == 1
    store.close()


def test_migrations_produce_the_tables_of_the_metadata(path):
    SqliteStore(path).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    folder = Path(store_module.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_current_head() == LATEST


def test_workload_database_files_are_private_and_writes_are_synchronous(path):
    store = SqliteStore(path)

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert {0o600} == set(modes.values())
    pragmas = ("journal_mode", "synchronous")
    values = [store._connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in pragmas]
    assert values == ["wal", 2]  # 2: FULL
    store.close()


@pytest.mark.parametrize("row_count", [1, 300])
def test_workload_rows_are_stored_changed_and_deleted_in_bulk(path, row_count):
    store = SqliteStore(path)
    rows = [_row(f"exp-{n}") for n in range(row_count)]
    events = [(row.id, HistoryEvent(1.0, "submitted", row.id)) for row in rows]
    store.save(rows, events=events)
    grant = Grant(0, "box", (DeviceShare(0, MilliGpu(1000)),))
    changed = [started(row, [grant], now=2.0, master_port=5).row for row in rows[: row_count // 2]]
    store.save([row for row in changed if row is not None])
    deleted_ids = [row.id for row in rows[-(row_count // 3 + 1) :]]
    store.save(deleted=deleted_ids)
    store.close()

    store = SqliteStore(path)
    expected = [*changed, *rows[row_count // 2 :]][: row_count - len(deleted_ids)]
    assert list(store.rows()) == expected
    assert [store.history(row.id) for row in rows] == [
        [] if row.id in deleted_ids else [event]
        for row, (_, event) in zip(rows, events, strict=True)
    ]
    store.close()
