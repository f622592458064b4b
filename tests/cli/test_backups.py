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
from runai.embedded.directory import DataDirectory
from runai.hub_service.clusters.local.store.workload_store import SqliteStore
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
def put_back(runai, platform):
    """Return a function that restores a backup and returns the command's output."""

    def run(made: Path, *options: str) -> str:
        result = runai("restore", str(made), "--data-dir", str(platform.root), *options)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    return run


async def ended_and_deleted(lab, spec) -> None:
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")
    await lab.cluster.delete(spec.id, by="ana")
    await lab.until_gone(spec.id)


async def test_a_backup_of_a_running_platform_is_whole_and_private(platform, backup, tmp_path):
    async with local_lab(tmp_path) as lab:
        await lab.cluster.submit([lab.job()])

        made = backup()

        store = SqliteStore(made / "cluster.sqlite")
        assert [row.id for row in store.rows()] == ["vision/exp"]
        store.close()
    told = json.loads((made / "backup.json").read_text())
    assert told["databases"] == ["cluster.sqlite"]
    assert (made / "secrets/hub_token").read_text() == (platform.secrets / "hub_token").read_text()
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (made, *made.rglob("*.sqlite"))}
    assert modes == {0}


async def test_restore_returns_deleted_workloads_and_sets_newer_data_aside(
    platform, backup, tmp_path, put_back
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        await lab.cluster.submit([lab.job()])
        made = backup()
        await lab.cluster.delete("vision/exp", by="ana")
        await lab.cluster.submit([lab.job("later")])

    put_back(made)

    store = SqliteStore(platform.root / "cluster.sqlite")
    assert [row.id for row in store.rows()] == ["vision/exp"]
    store.close()
    (aside,) = platform.root.glob("before-restore-*")
    before = SqliteStore(aside / "cluster.sqlite")
    assert [row.id for row in before.rows()] == ["vision/later"]
    before.close()
    assert (platform.secrets / "hub_token").exists()


async def test_restore_leaves_files_outside_the_backup_and_restores_private_files(
    platform, backup, put_back, tmp_path
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    (platform.secrets / "certificates").mkdir(mode=0o700)
    (platform.secrets / "certificates/key.pem").touch(0o600)
    made = backup()
    kept = [
        *("users/ana/work", "jobs/vision/exp/checkpoint/1", "jobs/.kept/x", "hub.log", "ca.crt"),
        *("jupyterhub_config.py", "before-restore-1/x"),
    ]
    for name in kept:
        (platform.root / name).parent.mkdir(parents=True, exist_ok=True)
        (platform.root / name).write_text(name)
        (platform.root / name).chmod(0o600)
    (platform.secrets / "since").touch()

    def found() -> dict[str, tuple[int, int, int]]:
        """Return owner, mode and inode of each file."""
        here = {name: (platform.root / name).stat() for name in kept}
        return {name: (one.st_uid, one.st_mode, one.st_ino) for name, one in here.items()}

    before = found()

    told = put_back(made)

    (aside,) = platform.root.glob("before-restore-2*")
    assert told == f"restored: cluster.sqlite\nwhat was there before: {aside}\n"
    assert found() == before
    assert made.is_dir()
    with_logs = {path.name.removesuffix("-wal").removesuffix("-shm") for path in aside.iterdir()}
    assert with_logs == {"cluster.sqlite", "secrets"}
    assert (aside / "secrets/since").exists()
    assert not (platform.secrets / "since").exists()
    private = (platform.secrets / "certificates/key.pem", platform.root / "cluster.sqlite")
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    folders = (aside, platform.secrets, platform.secrets / "certificates")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


async def test_workers_that_the_backup_does_not_know_are_not_left_running(
    runai, platform, backup, tmp_path, put_back
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        made = backup()
        spec = lab.job("later", grace_seconds=1)
        await lab.started(spec)

    refused = runai("restore", str(made), "--data-dir", str(platform.root))
    assert refused.exit_code == 1
    assert "Workers run that this backup does not know: vision/later-0." in refused.stderr

    assert "stopped: vision/later-0" in put_back(made, "--stop-unknown")
    # A later job of the same name finds no file of it.
    assert not list((platform.root / "jobs").glob("vision/later/attempt-*"))


async def test_a_job_that_was_submitted_again_is_not_taken_for_the_one_of_its_name(
    runai, platform, backup, tmp_path, put_back
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train", grace_seconds=1)
        await lab.started(spec, device=0)
        made = backup()
        await ended_and_deleted(lab, spec)
        await lab.started(spec, device=2)

    refused = runai("restore", str(made), "--data-dir", str(platform.root))
    assert "Workers run that this backup does not know: vision/train-0." in refused.stderr
    put_back(made, "--stop-unknown")

    (aside,) = platform.root.glob("before-restore-*")
    assert [*aside.glob("jobs/vision/train/attempt-1/worker-0/exit.json")]
    async with local_lab(tmp_path) as lab:
        await lab.until(spec.id, "retrying")  # a running workload of the backup is gone


async def test_a_job_that_has_ended_again_since_is_not_how_the_one_of_its_name_ended(
    backup, tmp_path, put_back
):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train", grace_seconds=1)
        await lab.started(spec)
        made = backup()
        await ended_and_deleted(lab, spec)
        await lab.started(spec)
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")

    put_back(made)

    async with local_lab(tmp_path) as lab:
        await lab.until(spec.id, "retrying")


async def test_a_job_that_has_run_since_the_backup_goes_on(backup, tmp_path, put_back):
    async with local_lab(tmp_path, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("train")
        await lab.started(spec)
        made = backup()

    put_back(made)

    async with local_lab(tmp_path) as lab:
        await lab.end(spec, 0)
        assert (await lab.until(spec.id, "succeeded")).attempts == 1


def test_a_platform_that_runs_is_not_restored(runai, platform, backup):
    SqliteStore(platform.root / "cluster.sqlite").close()
    made = backup()
    platform.lock("http://127.0.0.1:8000/")

    result = runai("restore", str(made), "--data-dir", str(platform.root))

    assert result.exit_code == 1
    assert "A platform runs on" in result.stderr


async def test_nothing_is_restored_beneath_a_service_that_has_the_cluster_open(
    runai, platform, backup, tmp_path
):
    """The service may belong to an admin's own hub, or to a frozen service of a killed hub."""
    async with local_lab(tmp_path) as lab:
        made = backup()
        await lab.cluster.put_project(ProjectSpec("later"))

        result = runai("restore", str(made), "--data-dir", str(platform.root))

        assert result.exit_code == 1
        assert f"has the cluster of {platform.root} open: process {os.getpid()}, since" in (
            result.stderr
        )
        assert f"kill -TERM {os.getpid()}" in result.stderr
    store = SqliteStore(platform.root / "cluster.sqlite")
    assert "later" in [project.spec.name for project in store.projects()]
    store.close()


def test_a_broken_backup_is_refused_before_anything_is_touched(runai, platform, backup):
    SqliteStore(platform.root / "cluster.sqlite").close()
    made = backup()
    (made / "cluster.sqlite").write_bytes(b"not a database, though as long as one" * 1000)

    result = runai("restore", str(made), "--data-dir", str(platform.root))

    assert result.exit_code == 1
    assert "cluster.sqlite is broken" in result.stderr
    with closing(sqlite3.connect(platform.root / "cluster.sqlite")) as connection, connection:
        assert connection.execute("SELECT count(*) FROM workloads").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_where_there_is_none_it_is_said(command, runai, tmp_path):
    arguments = [str(tmp_path)] if command == "restore" else []

    result = runai(command, *arguments, "--data-dir", str(tmp_path / "none"))

    assert result.exit_code == 1
    assert "not a backup of a platform" in result.stderr or "There is no platform" in result.stderr


async def test_the_tutorials_restore_drill_keeps_suspended_jobs_and_settings(platform, tmp_path):
    page = (Path(__file__).parents[2] / "docs/tutorials/admin.md").read_text(encoding="utf-8")
    found = re.search(r"\n### Restore drill\n.*?```\n(.*?)```", page, re.DOTALL)
    assert found
    suspends, backs_up, stops, *restores, starts = found[1].splitlines()
    backups = tmp_path / "backups"
    settings = "c.JupyterHub.concurrent_spawn_limit = 10\n"
    (platform.root / "jupyterhub_config.py").write_text(settings)

    def play(line: str) -> None:
        line = line.removeprefix("sudo ").replace("/var/lib/runai", str(platform.root))
        line = re.sub("^runai ", f"{sys.executable} -m runai.hub_service.cli ", line)
        made = next(backups.iterdir()).name if backups.exists() else ""
        line = line.replace("/mnt/backups", str(backups)).replace("FOLDER", made)
        subprocess.run(["sh", "-ec", line], check=True)

    async with local_lab(tmp_path, forget=False) as lab:
        job = lab.job(grace_seconds=1)
        await lab.started(job)
        assert "runai suspend" in suspends
        await lab.cluster.suspend(job.id, by="ana")
        await lab.until(job.id, "suspended")
        play(backs_up)
    assert stops == "sudo systemctl stop runai"
    for line in restores:
        play(line)
    assert starts == "sudo systemctl start runai"
    async with local_lab(tmp_path) as lab:
        assert (await lab.cluster.workload(job.id)).state == "suspended"
        await lab.cluster.resume(job.id, by="ana")
        assert await lab.cluster.apply(plan(start(job.id, 0))) == []
        await lab.until(job.id, "running")
        _, is_resumed = await lab.sees(job)
        assert is_resumed

    assert (platform.root / "jupyterhub_config.py").read_text() == settings
    assert (platform.root.with_name("data.before") / "cluster.sqlite").exists()
