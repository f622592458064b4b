"""`runai backup` copies a platform that runs; `runai restore` puts it back, losing nothing."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from labs import local_lab, plan, start
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.model.records import ProjectSpec


@pytest.fixture
def platform(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    return directory


@pytest.fixture
def backup(runai, platform):
    """Return a function that makes a backup and returns its folder."""

    def make() -> Path:
        result = runai("backup", "--data-dir", str(platform.root))
        assert result.exit_code == 0, result.output
        return Path(result.stdout.strip())

    return make


@pytest.fixture
def restore_backup(runai, platform):
    """Return a function that restores a backup and returns the command's output."""

    def run(backup_dir: Path, *options: str) -> str:
        result = runai("restore", str(backup_dir), "--data-dir", str(platform.root), *options)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    return run


async def end_and_delete(lab, spec) -> None:
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")
    await lab.cluster.delete(spec.id, by="ana")
    await lab.until_deleted(spec.id)


async def test_backup_of_a_running_platform_is_complete_and_private(platform, backup, tmp_path):
    async with local_lab(tmp_path) as lab:
        job = lab.job()
        await lab.cluster.submit([job])

        backup_dir = backup()

        store = SqliteStore(backup_dir / "cluster.sqlite")
        assert [row.id for row in store.rows()] == [job.id]
        store.close()
    manifest = json.loads((backup_dir / "backup.json").read_text())
    assert manifest["databases"] == ["cluster.sqlite"]
    assert (backup_dir / "secrets/hub_token").read_text() == (
        platform.secrets / "hub_token"
    ).read_text()
    foreign_rights = {
        stat.S_IMODE(path.stat().st_mode) & 0o077
        for path in (backup_dir, *backup_dir.rglob("*.sqlite"))
    }
    assert foreign_rights == {0}


async def test_restore_returns_deleted_workloads_and_sets_newer_data_aside(
    platform, backup, tmp_path, restore_backup
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        job, later_job = lab.job(), lab.job("later")
        await lab.cluster.submit([job])
        backup_dir = backup()
        await lab.cluster.delete(job.id, by="ana")
        await lab.cluster.submit([later_job])

    restore_backup(backup_dir)

    store = SqliteStore(platform.root / "cluster.sqlite")
    assert [row.id for row in store.rows()] == [job.id]
    store.close()
    (aside,) = platform.root.glob("before-restore-*")
    older_store = SqliteStore(aside / "cluster.sqlite")
    assert [row.id for row in older_store.rows()] == [later_job.id]
    older_store.close()
    assert (platform.secrets / "hub_token").exists()


async def test_restore_leaves_files_outside_the_backup_and_restores_private_files(
    platform, backup, restore_backup, tmp_path
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    (platform.secrets / "certificates").mkdir(mode=0o700)
    (platform.secrets / "certificates/key.pem").touch(0o600)
    backup_dir = backup()
    retained_files = [
        *("users/ana/work", "jobs/vision/exp/checkpoint/1", "jobs/.kept/x", "hub.log", "ca.crt"),
        *("jupyterhub_config.py", "before-restore-1/x"),
    ]
    for name in retained_files:
        (platform.root / name).parent.mkdir(parents=True, exist_ok=True)
        (platform.root / name).write_text(name)
        (platform.root / name).chmod(0o600)
    (platform.secrets / "since").touch()

    def file_stats() -> dict[str, tuple[int, int, int]]:
        """Return owner, mode and inode of each file."""
        stats = {name: (platform.root / name).stat() for name in retained_files}
        return {
            name: (file_stat.st_uid, file_stat.st_mode, file_stat.st_ino)
            for name, file_stat in stats.items()
        }

    before = file_stats()

    output = restore_backup(backup_dir)

    (aside,) = platform.root.glob("before-restore-2*")
    assert output == f"restored: cluster.sqlite\nwhat was there before: {aside}\n"
    assert file_stats() == before
    assert backup_dir.is_dir()
    moved_names = {path.name.removesuffix("-wal").removesuffix("-shm") for path in aside.iterdir()}
    assert moved_names == {"cluster.sqlite", "secrets"}
    assert (aside / "secrets/since").exists()
    assert not (platform.secrets / "since").exists()
    private = (platform.secrets / "certificates/key.pem", platform.root / "cluster.sqlite")
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    folders = (aside, platform.secrets, platform.secrets / "certificates")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


async def test_restore_refuses_or_stops_workers_unknown_to_the_backup(
    runai, platform, backup, tmp_path, restore_backup
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        backup_dir = backup()
        spec = lab.job("later", grace_seconds=1)
        await lab.started(spec)

    refused = runai("restore", str(backup_dir), "--data-dir", str(platform.root))
    assert refused.exit_code == 1
    assert "Workers run that this backup does not know: vision/later-0." in refused.stderr

    assert "stopped: vision/later-0" in restore_backup(backup_dir, "--stop-unknown")
    # A later job of the same name finds no file of it.
    assert not list((platform.root / "jobs").glob("vision/later/attempt-*"))


async def test_restore_treats_a_resubmitted_job_as_an_unknown_worker(
    runai, platform, backup, tmp_path, restore_backup
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train", grace_seconds=1)
        await lab.started(spec, device=0)
        backup_dir = backup()
        await end_and_delete(lab, spec)
        await lab.started(spec, device=2)

    refused = runai("restore", str(backup_dir), "--data-dir", str(platform.root))
    assert "Workers run that this backup does not know: vision/train-0." in refused.stderr
    restore_backup(backup_dir, "--stop-unknown")

    (aside,) = platform.root.glob("before-restore-*")
    assert [*aside.glob("jobs/vision/train/attempt-1/worker-0/exit.json")]
    async with local_lab(tmp_path) as lab:
        await lab.until(spec.id, "retrying")  # a running workload of the backup is gone


async def test_restore_ignores_the_exit_of_a_job_resubmitted_since_the_backup(
    backup, tmp_path, restore_backup
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train", grace_seconds=1)
        await lab.started(spec)
        backup_dir = backup()
        await end_and_delete(lab, spec)
        await lab.started(spec)
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")

    restore_backup(backup_dir)

    async with local_lab(tmp_path) as lab:
        await lab.until(spec.id, "retrying")


async def test_job_running_since_before_the_backup_continues_after_restore(
    backup, tmp_path, restore_backup
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train")
        await lab.started(spec)
        backup_dir = backup()

    restore_backup(backup_dir)

    async with local_lab(tmp_path) as lab:
        await lab.end(spec, 0)
        assert (await lab.until(spec.id, "succeeded")).attempts == 1


def test_restore_refuses_a_running_platform(runai, platform, backup):
    SqliteStore(platform.root / "cluster.sqlite").close()
    backup_dir = backup()
    platform.lock("http://127.0.0.1:8000/")

    result = runai("restore", str(backup_dir), "--data-dir", str(platform.root))

    assert result.exit_code == 1
    assert "A platform runs on" in result.stderr


async def test_restore_is_refused_while_a_service_has_the_cluster_open(
    runai, platform, backup, tmp_path
):
    """The service may belong to an admin's own hub, or to a frozen service of a killed hub."""
    async with local_lab(tmp_path) as lab:
        backup_dir = backup()
        await lab.cluster.put_project(ProjectSpec("later"))

        result = runai("restore", str(backup_dir), "--data-dir", str(platform.root))

        assert result.exit_code == 1
        assert f"has the cluster of {platform.root} open: process {os.getpid()}, since" in (
            result.stderr
        )
        assert f"kill -TERM {os.getpid()}" in result.stderr
    store = SqliteStore(platform.root / "cluster.sqlite")
    assert "later" in [project.spec.name for project in store.projects()]
    store.close()


def test_restore_refuses_a_broken_backup_before_changing_anything(runai, platform, backup):
    SqliteStore(platform.root / "cluster.sqlite").close()
    backup_dir = backup()
    (backup_dir / "cluster.sqlite").write_bytes(b"not a database, though as long as one" * 1000)

    result = runai("restore", str(backup_dir), "--data-dir", str(platform.root))

    assert result.exit_code == 1
    assert "cluster.sqlite is broken" in result.stderr
    with closing(sqlite3.connect(platform.root / "cluster.sqlite")) as connection, connection:
        assert connection.execute("SELECT count(*) FROM workloads").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_backup_and_restore_name_a_missing_platform_or_backup(command, runai, tmp_path):
    arguments = [str(tmp_path)] if command == "restore" else []

    result = runai(command, *arguments, "--data-dir", str(tmp_path / "none"))

    assert result.exit_code == 1
    assert "not a backup of a platform" in result.stderr or "There is no platform" in result.stderr


async def test_restore_drill_of_the_tutorial_retains_suspended_jobs_and_settings(
    platform, tmp_path
):
    page = (Path(__file__).parents[2] / "docs/tutorials/admin.md").read_text(encoding="utf-8")
    section = re.search(r"\n### Restore drill\n.*?```\n(.*?)```", page, re.DOTALL)
    assert section
    suspend_line, backup_line, stop_line, *restore_lines, start_line = section[1].splitlines()
    backups = tmp_path / "backups"
    settings = "c.JupyterHub.concurrent_spawn_limit = 10\n"
    (platform.root / "jupyterhub_config.py").write_text(settings)

    def run_line(line: str) -> None:
        line = line.removeprefix("sudo ").replace("/var/lib/runai", str(platform.root))
        line = re.sub("^runai ", f"{sys.executable} -m runai.hub_service.cli ", line)
        folder_name = next(backups.iterdir()).name if backups.exists() else ""
        line = line.replace("/mnt/backups", str(backups)).replace("FOLDER", folder_name)
        subprocess.run(["sh", "-ec", line], check=True)

    async with local_lab(tmp_path, forget=False) as lab:
        job = lab.job(grace_seconds=1)
        await lab.started(job)
        assert "runai suspend" in suspend_line
        await lab.cluster.suspend(job.id, by="ana")
        await lab.until(job.id, "suspended")
        run_line(backup_line)
    assert stop_line == "sudo systemctl stop runai"
    for line in restore_lines:
        run_line(line)
    assert start_line == "sudo systemctl start runai"
    async with local_lab(tmp_path) as lab:
        assert (await lab.cluster.workload(job.id)).state == "suspended"
        await lab.cluster.resume(job.id, by="ana")
        assert await lab.cluster.apply(plan(start(job.id, 0))) == []
        await lab.until(job.id, "running")
        _, is_resumed = await lab.sees(job)
        assert is_resumed

    assert (platform.root / "jupyterhub_config.py").read_text() == settings
    assert (platform.root.with_name("data.before") / "cluster.sqlite").exists()
