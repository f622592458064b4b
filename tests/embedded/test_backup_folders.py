"""The folder of a backup: its name, and nothing left of an unfinished one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from runai.embedded.backup.backups import ABANDONED_AFTER_S, back_up, read_manifest
from runai.embedded.backup.restore import restore
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.user_actions import submitted
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.sqlite.files import invalid_reason
from runai.hub_service.wire.errors import Unavailable

BACKUP_TIME = "2030-01-02T03-04-05"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch) -> DataDirectory:
    """Return a platform whose clock stands still."""
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    SqliteStore(directory.root / "cluster.sqlite").close()
    monkeypatch.setattr(time, "strftime", lambda _: BACKUP_TIME)
    return directory


def test_concurrent_backups_get_distinct_complete_folders(platform):
    with ThreadPoolExecutor(8) as pool:
        backups = list(pool.map(lambda _: back_up(platform), range(8)))

    names = {f"runai-{BACKUP_TIME}", *(f"runai-{BACKUP_TIME}+{number}" for number in range(2, 9))}
    assert {path.name for path in backups} == names
    assert {path.name for path in (platform.root / "backups").iterdir()} == names
    for path in backups:
        assert read_manifest(path)["databases"] == ["cluster.sqlite"]
        assert invalid_reason(path / "cluster.sqlite") == ""
        assert (path / "secrets/hub_token").exists()


def test_failed_backup_leaves_partial_folders_of_other_backups(platform):
    folder = platform.root / "backups"
    other_partial = folder / f".runai-{BACKUP_TIME}-0123abcd.partial"
    other_partial.mkdir(parents=True)
    (platform.root / "cluster.sqlite").write_bytes(b"no database" * 1000)

    with pytest.raises(Unavailable, match="is broken"):
        back_up(platform)

    assert [*folder.iterdir()] == [other_partial]


def test_partial_backup_is_removed_after_a_day(platform):
    folder = platform.root / "backups"
    old, young = folder / ".runai-x.partial", folder / ".runai-y.partial"
    for path in (old / "secrets", young):
        path.mkdir(parents=True)
    yesterday = time.time() - ABANDONED_AFTER_S - 60
    os.utime(old, (yesterday, yesterday))

    backup = back_up(platform)

    assert sorted(folder.iterdir()) == sorted([young, backup])


def test_backup_succeeds_while_a_secret_file_is_replaced(platform, monkeypatch):
    temporary_secret = platform.secrets / ".accounts.json.0123abcd"
    temporary_secret.write_text("{}")
    real_copy = shutil.copy2

    def copy_after_removal(source: str, target: str) -> None:
        temporary_secret.unlink(missing_ok=True)  # after the folder was read
        real_copy(source, target)

    monkeypatch.setattr(shutil, "copy2", copy_after_removal)

    backup = back_up(platform)

    assert {path.name for path in (backup / "secrets").iterdir()} == {"hub_token", "cookie_secret"}


def test_unwritable_backup_folder_is_named_in_the_error(platform, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unavailable, match=f"No backup could be made in {tmp_path}/file/x: Not a"):
        back_up(platform, tmp_path / "file/x")


@pytest.mark.parametrize("system_users", [True, False], ids=["Unix accounts", "private"])
def test_restore_preserves_directory_permissions(platform, system_users):
    platform.prepare(system_users=system_users)
    before = platform.root.stat().st_mode

    restore(platform, back_up(platform))

    assert platform.root.stat().st_mode == before
    assert platform.is_of_system_users is system_users


def replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_with_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def add_linked_file(path: Path) -> None:
    (path / "x").symlink_to("/etc/hostname")


def add_linked_folder(path: Path) -> None:
    (path / "x").symlink_to("/etc")


def add_pipe(path: Path) -> None:
    os.mkfifo(path / "x")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("backup.json", replace_with_pipe, id="manifest is a pipe"),
        pytest.param("backup.json", replace_with_link, id="manifest is a link"),
        pytest.param("cluster.sqlite", replace_with_pipe, id="database is a pipe"),
        pytest.param("cluster.sqlite", replace_with_link, id="database is a link"),
        pytest.param("secrets", replace_with_link, id="folder of secrets is a link"),
        pytest.param("secrets", add_linked_file, id="secret is a link"),
        pytest.param("secrets", add_linked_folder, id="folder among secrets is a link"),
        pytest.param("secrets", add_pipe, id="secret is a pipe"),
    ],
)
def test_restore_takes_regular_files_only(platform, name, change):
    backup = back_up(platform)
    secret = (platform.secrets / "hub_token").read_text()
    change(backup / name)
    (platform.secrets / "hub_token").write_text("new secret")

    with pytest.raises(Unavailable, match=f"{name}.* is no regular file"):
        restore(platform, backup)

    assert (platform.secrets / "hub_token").read_text() == "new secret"
    (platform.secrets / "hub_token").write_text(secret)
    assert not list(platform.root.glob("before-restore-*"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("UPDATE workloads SET row = '{'", id="no JSON"),
        pytest.param("UPDATE workloads SET row = '{\"record\":{}}'", id="no fields"),
        pytest.param("UPDATE workloads SET row = '[]'", id="no record"),
        pytest.param("UPDATE workloads SET spec = '{'", id="specification"),
        pytest.param("INSERT INTO projects VALUES (9, 'lab', 1.0, '{')", id="project"),
    ],
)
def test_restore_names_the_unreadable_database_row(platform, damage):
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",))
    row = submitted(spec, now=1.5, checkpoint_dir="/c", log_dir="/l").row
    assert row is not None
    with closing(SqliteStore(platform.root / "cluster.sqlite")) as store:
        store.save([row])
    backup = back_up(platform)
    with closing(sqlite3.connect(backup / "cluster.sqlite")) as connection, connection:
        connection.execute(damage)

    with pytest.raises(
        Unavailable, match=r"the row of (workload vision/exp|project lab) cannot be"
    ):
        restore(platform, backup)

    assert not list(platform.root.glob("before-restore-*"))
