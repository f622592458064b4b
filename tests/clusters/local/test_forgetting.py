"""All data of a listed workload stays, and all data of an unlisted one is removed.

A change that cannot be stored is refused before any file is removed (`test_disk`); a service killed
in between leaves the removal to the next one, which finds the intent on disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from labs import LocalLab, local_lab, plan, start
from runai.hub_service.clusters.local.processes.attempt import Instructions
from waiting import eventually_async

SAVES = 'echo model > "$RUNAI_CHECKPOINT_DIR/model"'
EVE = 54_324
KILLED_WHILE_FORGETTING = """
import asyncio, os, signal, sys
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.local.local_cluster import LocalCluster
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore

place, how, when = sys.argv[1:]
save = SqliteStore.save

def killed(*words, **fields):
    if when == "after":
        save(*words, **fields)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with LocalCluster.open(place, [], "box", retention=RetentionPolicy(60.0)) as cluster:
        SqliteStore.save = killed
        if how == "deleted":
            await cluster.delete("vision/exp", by="ana")
        cluster.apply_due_transitions()

asyncio.run(main())
"""


async def run_saving_job(lab: LocalLab) -> None:
    """Run a job that has saved a checkpoint."""
    await lab.cluster.submit([lab.job("exp", command=("sh", "-c", SAVES))])
    await lab.cluster.apply(plan(start("vision/exp", 0)))
    await lab.until("vision/exp", "succeeded")


def kill_while_forgetting(place: Path, how: str, when: str) -> None:
    words = [sys.executable, "-c", KILLED_WHILE_FORGETTING, str(place / "data"), how, when]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("how", ["deleted", "aged"])
async def test_job_deletion_not_stored_before_a_service_kill_removes_no_file(how, tmp_path):
    async with local_lab(tmp_path, forget=False) as lab:
        await run_saving_job(lab)
    kill_while_forgetting(tmp_path, how, "before")

    async with local_lab(tmp_path) as lab:
        record = await lab.cluster.workload("vision/exp")
        assert (Path(record.checkpoint_dir) / "model").read_text() == "model\n"


@pytest.mark.parametrize("how", ["deleted", "aged"])
async def test_job_deletion_stored_before_a_service_kill_is_finished_after_the_restart(
    how, tmp_path
):
    jobs = tmp_path / "data/jobs"
    async with local_lab(tmp_path, forget=False) as lab:
        await run_saving_job(lab)
    kill_while_forgetting(tmp_path, how, "after")

    async with local_lab(tmp_path) as lab:
        assert await lab.cluster.workloads() == []
        await eventually_async(lambda: not any((jobs / ".trash").iterdir()))
        left = [path.name for path in jobs.rglob("*") if path.is_file()]
        assert left == (["model"] if how == "aged" else [])
        assert not (jobs / "vision/exp").exists()
        await run_saving_job(lab)  # no file that the next workload of this name would find


@pytest.fixture
def home() -> Iterator[Path]:
    """Make a home where Eve has access: pytest's own folders are root's alone."""
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, EVE, EVE)
    yield folder
    shutil.rmtree(folder)


FOLLOWS = f"""
import asyncio, sys
from pathlib import Path
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.clusters.local.files.job_dir_cleanup import DeletedWorkload, HomeJobDir
from runai.hub_service.clusters.local.files.job_dir_cleanup import JobDirCleanup
jobs, own, aged = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "aged"
killed, following = JobDirCleanup(jobs), JobDirCleanup(jobs)
home_dir = HomeJobDir(own, UnixAccount("eve", own.parent, {EVE}, {EVE}))
with killed.removal(DeletedWorkload("vision/exp", 1.0, aged), home_dir):
    pass  # what it wants removed it never comes to
following.settle(lambda _name, _submitted: False)

async def until_all_is_removed():
    removing = asyncio.create_task(following.run())
    while any((jobs / ".trash").iterdir()):
        await asyncio.sleep(0.01)
    removing.cancel()

asyncio.run(until_all_is_removed())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to remove files as users")
@pytest.mark.parametrize(("aged", "stays"), [(False, []), (True, ["model"])])
def test_restarted_service_removes_files_of_deleted_jobs_from_their_users_home(
    aged, stays, home, tmp_path
):
    job_dir, worker = home / "exp-1", tmp_path / "vision/exp/attempt-1/worker-0"
    for folder in (job_dir, job_dir / "checkpoints", worker):
        folder.mkdir(parents=True)
        os.chown(folder, EVE, EVE)
    (job_dir / "source.py").write_text("")
    (job_dir / "checkpoints/model").write_text("")
    instructions = Instructions(
        ("true",), str(home), 1.0, uid=EVE, gid=EVE, user="eve", own_directory=str(job_dir)
    )
    (worker / "spec.json").write_text(json.dumps(asdict(instructions)))
    # In a separate process: ours may have library threads, which are unsafe across a fork.
    reason = "aged" if aged else "asked"
    subprocess.run(
        [sys.executable, "-c", FOLLOWS, tmp_path, job_dir, reason], check=True, timeout=120
    )

    assert [path.name for path in home.rglob("*") if path.is_file()] == stays
