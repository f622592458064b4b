"""A restoration that ends anywhere leaves the old platform or the new one, never an empty one."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from crashes.small_disk import SmallDisk
from runai.embedded.backup.backups import DATABASES, back_up
from runai.embedded.backup.restore import restore
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.store.cluster_lock import check_is_whole
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.model.records import ProjectRecord, ProjectSpec
from runai.hub_service.wire.errors import Conflict, RunaiError, Unavailable

RENAME_FUNCTIONS = ("rename", "replace")
UP_PROGRAM = "from runai.embedded.up import main; raise SystemExit(main())"
RESTORE_KILLED_AT_RENAME = """
import os, signal, sys
from pathlib import Path
from runai.embedded.data_directory import DataDirectory
from runai.embedded.backup.restore import restore
left, rename = iter(range(int(sys.argv[3]))), os.rename
def kill(*paths):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*paths)
os.rename = kill
restore(DataDirectory(Path(sys.argv[1])), Path(sys.argv[2]))
"""


class Killed(BaseException):
    """The end of a restoration by a signal."""


def names_by_part(root: Path) -> dict[str, str]:
    """Return the platform's name in each part of a data directory; "" for a missing part."""
    names = dict.fromkeys((*DATABASES, "secrets", "aside"), "")
    if (root / "cluster.sqlite").exists():
        store = SqliteStore(root / "cluster.sqlite")
        names["cluster.sqlite"] = "".join(project.spec.name for project in store.projects())
        store.close()
    for name in DATABASES[1:]:
        if (root / name).exists():
            with closing(sqlite3.connect(root / name)) as connection:
                names[name] = connection.execute("SELECT name FROM whose").fetchone()[0]
    if (root / "secrets/whose").exists():
        names["secrets"] = (root / "secrets/whose").read_text()
    names["aside"] = " ".join(path.parent.name for path in root.glob("before-restore-*/*/whose"))
    return names


def make_platform(root: Path, name: str) -> DataDirectory:
    """Make a platform with `name` in every part, or rename an existing one."""
    directory = DataDirectory(root)
    directory.prepare(system_users=False)
    store = SqliteStore(root / "cluster.sqlite")
    replaced = [project.spec.name for project in store.projects()]
    store.save(projects=[ProjectRecord(ProjectSpec(name), 1.0)], deleted_projects=replaced)
    store.close()
    LedgerStore(root / "ledger.sqlite").close()
    for database in DATABASES[1:]:
        with closing(sqlite3.connect(root / database)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS whose (name TEXT)")
            connection.execute("DELETE FROM whose")
            connection.execute("INSERT INTO whose VALUES (?)", (name,))
    (directory.secrets / "whose").write_text(name)
    return directory


OLD_PLATFORM = dict.fromkeys((*DATABASES, "secrets"), "old") | {"aside": ""}
NEW_PLATFORM = dict.fromkeys((*DATABASES, "secrets"), "new") | {"aside": "secrets"}
"""`new` is the backup's content."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a platform, its backup, and another platform in its place."""
    folder = tmp_path_factory.mktemp("template")
    back_up(make_platform(folder / "data", "new"), folder / "backups")
    root = make_platform(folder / "data", "old").root
    ended_worker_dir = root / "jobs/vision/later/attempt-1/worker-0"
    ended_worker_dir.mkdir(parents=True)
    return folder


@pytest.fixture
def backup(template: Path, tmp_path: Path) -> Path:
    """Copy the backup of a platform, and the platform that has changed since."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    (backup_dir,) = (tmp_path / "backups").iterdir()
    return backup_dir


def kill_restore_at_rename(rename: int, root: Path, backup: Path) -> None:
    """Restore in a process that is killed before the given one of the committing renames."""
    command = [sys.executable, "-c", RESTORE_KILLED_AT_RENAME, str(root), str(backup), str(rename)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def is_half_restored(directory: DataDirectory) -> bool:
    try:
        check_is_whole(directory.root)
    except Conflict:
        return True
    return False


def test_restore_killed_at_any_rename_is_finished_by_the_next_restore(
    backup, tmp_path, monkeypatch
):
    real_functions = {name: getattr(os, name) for name in RENAME_FUNCTIONS}
    half_restored_count, root = 0, tmp_path
    for completed_renames in count():
        root = tmp_path / f"copy-{completed_renames}"
        shutil.copytree(tmp_path / "data", root)
        remaining = iter(range(completed_renames))

        def rename_or_kill(source, target, *, name, remaining=remaining, root=root):
            if str(root) in str(source) and next(remaining, None) is None:
                raise Killed
            real_functions[name](source, target)

        for name in RENAME_FUNCTIONS:
            monkeypatch.setattr(
                os, name, lambda s, t, name=name, k=rename_or_kill: k(s, t, name=name)
            )
        try:
            restore(DataDirectory(root), backup)
        except Killed:
            completed = False
        else:
            completed = True
        for name in RENAME_FUNCTIONS:
            monkeypatch.setattr(os, name, real_functions[name])

        if completed:
            break
        if is_half_restored(DataDirectory(root)):
            half_restored_count += 1
        else:
            assert names_by_part(root) == OLD_PLATFORM
        second_restore = restore(DataDirectory(root), backup)

        assert names_by_part(root) == NEW_PLATFORM
        assert not is_half_restored(DataDirectory(root))
        assert (second_restore.aside / "jobs/vision/later/attempt-1").is_dir()
        assert not list(root.glob(".restoring*"))
    assert half_restored_count > 8  # a restore has more renames than that
    assert names_by_part(root) == NEW_PLATFORM


def test_platform_does_not_start_until_a_killed_restore_is_finished(backup, runai, tmp_path):
    root = tmp_path / "data"
    kill_restore_at_rename(4, root, backup)  # any in the middle

    backup_result = runai("backup", "--data-dir", str(root))

    assert backup_result.exit_code == 1
    assert "A restoration was interrupted in" in backup_result.stderr
    up = subprocess.run(
        [sys.executable, "-c", UP_PROGRAM, "--data-dir", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert up.returncode == 1
    assert "Run the same `runai restore BACKUP` again" in up.stderr
    result = runai("restore", str(backup), "--data-dir", str(root))
    assert result.exit_code == 0, result.output
    assert names_by_part(root) == NEW_PLATFORM


def test_restore_refuses_to_replace_a_file_created_during_the_interruption(backup, runai, tmp_path):
    root = tmp_path / "data"
    kill_restore_at_rename(2, root, backup)  # the old database is moved, the new one is not
    assert not (root / "cluster.sqlite").exists()
    (root / "cluster.sqlite").write_text("a new file")

    refused = runai("restore", str(backup), "--data-dir", str(root))

    assert refused.exit_code == 1
    assert "cluster.sqlite has come while the restoration was interrupted." in refused.stderr
    (root / "cluster.sqlite").rename(tmp_path / "away")
    assert runai("restore", str(backup), "--data-dir", str(root)).exit_code == 0
    assert names_by_part(root) == NEW_PLATFORM


async def test_service_refuses_a_half_restored_platform(backup, tmp_path):
    root = tmp_path / "data"
    kill_restore_at_rename(2, root, backup)  # the old database is moved, the new one is not
    before = sorted(root.iterdir())

    with pytest.raises(Conflict, match="A restoration was interrupted"):
        async with open_local_cluster(root, [], "box"):
            pass

    assert sorted(root.iterdir()) == before


def test_different_backup_is_restored_after_the_interrupted_restore(backup, tmp_path):
    root = tmp_path / "data"
    other_backup = back_up(make_platform(tmp_path / "other", "third"), tmp_path / "others")
    kill_restore_at_rename(5, root, backup)  # any in the middle
    shutil.rmtree(backup)  # the backup is staged beside the platform

    restore(DataDirectory(root), other_backup)

    assert {
        name: platform_name
        for name, platform_name in names_by_part(root).items()
        if name != "aside"
    } == (dict.fromkeys((*DATABASES, "secrets"), "third"))


@pytest.mark.parametrize("name", ["cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite"])
def test_restore_refuses_a_backup_of_a_newer_version_before_any_move(name, backup, tmp_path):
    with closing(sqlite3.connect(backup / name)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS alembic_version (version_num TEXT)")
        connection.execute("DELETE FROM alembic_version")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")

    with pytest.raises(Unavailable, match=f"{name} of .* made by version .* schema 9999"):
        restore(DataDirectory(tmp_path / "data"), backup)

    assert names_by_part(tmp_path / "data") == OLD_PLATFORM
    assert not list((tmp_path / "data").glob(".restoring*"))


@pytest.mark.parametrize("text", ["", '{"moves": 7}'])
def test_restore_names_an_unreadable_interrupted_restore_and_moves_nothing(text, backup, tmp_path):
    (tmp_path / "data/restoring").mkdir()
    (tmp_path / "data/restoring/backup.json").write_text(text)

    with pytest.raises(Unavailable, match=r"data/restoring says .* and cannot be read"):
        restore(DataDirectory(tmp_path / "data"), backup)

    assert names_by_part(tmp_path / "data") == OLD_PLATFORM


@pytest.mark.mounts
def test_restore_refuses_files_on_a_different_disk_before_any_rename(backup, tmp_path):
    root = tmp_path / "data"
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk", mib=8)
    try:
        shutil.move(root / "jobs", disk.folder / "jobs")
        (root / "jobs").symlink_to(disk.folder / "jobs")

        with pytest.raises(Conflict, match="attempt-1 lies on another disk"):
            restore(DataDirectory(root), backup)

        assert names_by_part(root) == OLD_PLATFORM
        assert not is_half_restored(DataDirectory(root))
    finally:
        disk.unmount()


def test_restore_with_uncopyable_secrets_leaves_the_old_platform(backup, tmp_path):
    (backup / "secrets/lost").symlink_to("nowhere")

    with pytest.raises(RunaiError, match="secrets/lost is no regular file"):
        restore(DataDirectory(tmp_path / "data"), backup)

    assert names_by_part(tmp_path / "data") == OLD_PLATFORM


@pytest.mark.mounts
def test_restore_on_a_full_disk_leaves_the_old_platform(backup, tmp_path):
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk", mib=8)
    try:
        root = disk.folder  # the data directory may be a mount point
        shutil.copytree(tmp_path / "data", root, dirs_exist_ok=True)
        disk.fill()

        with pytest.raises(Unavailable, match=r"(No space left|is full).* as it was"):
            restore(DataDirectory(root), backup)

        disk.make_room()
        assert names_by_part(root) == OLD_PLATFORM
        restore(DataDirectory(root), backup)
        assert names_by_part(root)["cluster.sqlite"] == "new"
    finally:
        disk.unmount()
