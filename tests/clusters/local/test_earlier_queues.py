"""The queue of an earlier version starts nothing, and is set aside by `--new-queue` alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from labs import Clock, local_lab
from runai.embedded.backup.earlier_queue import set_queue_aside
from runai.hub_service.clusters.local.data_dir_checks import check_version, running_workers
from runai.hub_service.wire.errors import Conflict, Unavailable

EARLIER = "0101"


def make_earlier(root: Path) -> None:
    """Turn the queue of a data directory into one of an earlier version."""
    with closing(sqlite3.connect(root / "cluster.sqlite")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (EARLIER,))


def up(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `runai up`, which is to be refused."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "runai.embedded",
            "--data-dir",
            str(root),
            "--simulate",
            "1",
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(root.parent)},
    )


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_earlier_queue_is_refused_and_named_with_its_running_jobs(tmp_path):
    clock, root = Clock(), tmp_path / "data"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=0)
        await lab.started(spec)
    make_earlier(root)
    [(job, pid)] = running_workers(root)
    assert job == spec.id

    with pytest.raises(Unavailable, match="queue of an earlier version") as refused:
        check_version(root)
    ended = up(root, "--new-queue")

    assert ended.returncode == 1
    assert "still run: vision/exp." in ended.stderr
    for hint in (refused.value.hint, ended.stderr):
        assert f"kill -TERM {pid}" in hint
    assert "jobs.earlier, where checkpoints lie" in refused.value.hint
    with closing(sqlite3.connect(root / "cluster.sqlite")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0200'")
    async with local_lab(tmp_path, clock) as lab:
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")


async def test_new_queue_renames_the_earlier_queue_and_its_jobs_and_keeps_everything(tmp_path):
    clock, root = Clock(), tmp_path / "data"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    checkpoint = root / "jobs/vision/exp/checkpoints/step"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text("7")
    make_earlier(root)
    (root / "jobs.earlier").mkdir()  # of an earlier time

    paths = set_queue_aside(root)

    assert set_queue_aside(root) == {}
    assert [path.name for path in paths.values()] == ["jobs.earlier-2", "cluster.sqlite.earlier-2"]
    assert (root / "jobs.earlier-2/vision/exp/checkpoints/step").read_text() == "7"
    with closing(sqlite3.connect(root / "cluster.sqlite.earlier-2")) as connection:
        assert connection.execute("SELECT id FROM workloads").fetchall() == [("vision/exp",)]
    async with local_lab(tmp_path, clock) as lab:
        assert await lab.cluster.workloads() == []


def test_up_on_an_earlier_queue_says_the_way_out_and_changes_no_file(tmp_path):
    root = tmp_path / "data"
    (root / "jobs/vision/exp").mkdir(parents=True)
    with closing(sqlite3.connect(root / "cluster.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (EARLIER,))
    before = files(root)

    ended = up(root)

    assert ended.returncode == 1
    assert "--new-queue renames the queue to cluster.sqlite.earlier" in ended.stderr
    assert files(root) == before


async def test_new_queue_is_refused_while_a_session_of_the_earlier_queue_runs(tmp_path):
    root = tmp_path / "data"
    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        spec = lab.session()
        await lab.started(spec)
        process = await lab.session_process()
        await lab.cluster.attach(spec.id, process)
    make_earlier(root)
    try:
        with pytest.raises(Conflict, match=r"still run: vision/lab-ana") as refused:
            set_queue_aside(root)
    finally:
        lab.close()

    assert refused.value.hint.endswith(f"kill -TERM {process.pid}")


async def test_new_queue_is_refused_in_a_copy_of_a_running_platforms_directory(tmp_path):
    copied = tmp_path / "copied"
    async with local_lab(tmp_path, Clock()) as lab:
        await lab.cluster.submit([lab.job()])
        shutil.copytree(tmp_path / "data", copied)
        make_earlier(copied)

        with pytest.raises(Conflict, match=r"is a copy of .*, where a platform runs"):
            set_queue_aside(copied)


async def earlier_queue_of_one_job(root: Path) -> None:
    async with local_lab(root.parent, Clock(), forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    make_earlier(root)


async def test_new_queue_after_a_crash_between_the_renames_completes_the_pair(tmp_path):
    root = tmp_path / "data"
    await earlier_queue_of_one_job(root)
    (root / "jobs").rename(root / "jobs.earlier")  # and then a crash

    paths = set_queue_aside(root)

    assert paths == {root / "cluster.sqlite": root / "cluster.sqlite.earlier"}
    assert (root / "cluster.sqlite.earlier").exists()


async def test_new_queue_is_refused_while_the_disk_of_the_jobs_is_not_mounted(tmp_path):
    root, disk = tmp_path / "data", tmp_path / "disk"
    await earlier_queue_of_one_job(root)
    (root / "jobs").rename(disk)
    (root / "jobs").symlink_to(tmp_path / "unmounted")

    with pytest.raises(Unavailable, match=r"could not be renamed: .*jobs"):
        set_queue_aside(root)

    assert (root / "cluster.sqlite").exists()
    assert not list(root.glob("*.earlier"))
