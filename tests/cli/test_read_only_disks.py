"""Read-only disks suffice for reading a platform, and for restoring a backup."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crashes.small_disk import SmallDisk
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.model.records import ProjectRecord, ProjectSpec

pytestmark = pytest.mark.mounts


@pytest.fixture
def copy_read_only(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Return a function that copies a folder to a disk and makes the disk read-only."""
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk", mib=16)

    def copy(folder: Path) -> Path:
        shutil.copytree(folder, disk.folder / "copy")
        subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
        return disk.folder / "copy"

    yield copy
    disk.unmount()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[tuple[DataDirectory, SqliteStore]]:
    """Make a platform with a project and an open database."""
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    store = SqliteStore(directory.root / "cluster.sqlite")
    store.save(projects=[ProjectRecord(ProjectSpec("vision"), 1.0)])
    yield directory, store
    store.close()


def project_names(folder: Path) -> list[str]:
    store = SqliteStore(folder / "cluster.sqlite")
    names = [project.spec.name for project in store.projects()]
    store.close()
    return names


@pytest.mark.parametrize("platform_end", ["stopped", "killed"])
def test_backup_copies_a_platform_on_a_read_only_disk(
    platform_end, platform, copy_read_only, runai, tmp_path
):
    directory, store = platform
    if platform_end == "stopped":
        store.close()  # a killed one leaves its write-ahead log
    read_only_root = copy_read_only(directory.root)

    result = runai("backup", str(tmp_path / "backups"), "--data-dir", str(read_only_root))

    assert result.exit_code == 0, result.output
    assert project_names(Path(result.stdout.strip())) == ["vision"]


def test_restore_reads_a_backup_on_a_read_only_disk(platform, copy_read_only, runai, tmp_path):
    directory, store = platform
    backup_result = runai("backup", str(tmp_path / "backups"), "--data-dir", str(directory.root))
    store.save(deleted_projects=["vision"])
    store.close()
    read_only_backup = copy_read_only(Path(backup_result.stdout.strip()))

    result = runai("restore", str(read_only_backup), "--data-dir", str(directory.root))

    assert result.exit_code == 0, result.output
    assert project_names(directory.root) == ["vision"]
