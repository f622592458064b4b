"""All data of a listed workload stays, and all data of an unlisted one is removed.

A change that cannot be stored is refused before any file is removed (`test_unwritable_disk`); a
service killed in between leaves the removal to the next one, which finds the intent on disk.
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

SAVE_COMMAND = 'echo model > "$RUNAI_CHECKPOINT_DIR/model"'
EVE_UID = 54_324
KILLED_SERVICE = """
import asyncio, os, signal, sys
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore

data_dir, removal, moment = sys.argv[1:]
save = SqliteStore.save

def killed(*words, **fields):
    if moment == "after":
        save(*words, **fields)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_local_cluster(data_dir, [], "box", retention=RetentionPolicy(60.0)) as cluster:
        SqliteStore.save = killed
        if removal == "deleted":
            await cluster.delete("vision/exp", by="ana")
        cluster.apply_due_transitions()

asyncio.run(main())
"""


async def run_saving_job(lab: LocalLab) -> None:
    """Run a job that has saved a checkpoint."""
    await lab.cluster.submit([lab.job("exp", command=("sh", "-c", SAVE_COMMAND))])
    await lab.cluster.apply(plan(start("vision/exp", 0)))
    await lab.until("vision/exp", "succeeded")


def kill_service_during_removal(tmp_path: Path, removal: str, moment: str) -> None:
    """Kill a service that removes a job, before or after it has stored the removal."""
    words = [sys.executable, "-c", KILLED_SERVICE, str(tmp_path / "data"), removal, moment]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("removal", ["deleted", "aged"])
async def test_job_deletion_not_stored_before_a_service_kill_removes_no_file(removal, tmp_path):
    async with local_lab(tmp_path, forget=False) as lab:
        await run_saving_job(lab)
    kill_service_during_removal(tmp_path, removal, "before")

    async with local_lab(tmp_path) as lab:
        record = await lab.cluster.workload("vision/exp")
        assert (Path(record.checkpoint_dir) / "model").read_text() == "model\n"


@pytest.mark.parametrize("removal", ["deleted", "aged"])
async def test_job_deletion_stored_before_a_service_kill_is_finished_after_the_restart(
    removal, tmp_path
):
    jobs = tmp_path / "data/jobs"
    async with local_lab(tmp_path, forget=False) as lab:
        await run_saving_job(lab)
    kill_service_during_removal(tmp_path, removal, "after")

    async with local_lab(tmp_path) as lab:
        assert await lab.cluster.workloads() == []
        await eventually_async(lambda: not any((jobs / ".trash").iterdir()))
        remaining_files = [path.name for path in jobs.rglob("*") if path.is_file()]
        assert remaining_files == (["model"] if removal == "aged" else [])
        assert not (jobs / "vision/exp").exists()
        await run_saving_job(lab)  # the next job of this name finds no file


@pytest.fixture
def home() -> Iterator[Path]:
    """Make a home where Eve has access: pytest's own folders are root's alone."""
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, EVE_UID, EVE_UID)
    yield folder
    shutil.rmtree(folder)


RESTART = f"""
import asyncio, sys
from pathlib import Path
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.clusters.local.files.job_dir_cleanup import DeletedWorkload, HomeJobDir
from runai.hub_service.clusters.local.files.job_dir_cleanup import JobDirCleanup
jobs, own, aged = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "aged"
killed, following = JobDirCleanup(jobs), JobDirCleanup(jobs)
home_dir = HomeJobDir(own, UnixAccount("eve", own.parent, {EVE_UID}, {EVE_UID}))
with killed.removal(DeletedWorkload("vision/exp", 1.0, aged), home_dir):
    pass  # the killed service removes no file itself
following.settle(lambda _name, _submitted: False)

async def until_all_is_removed():
    removing = asyncio.create_task(following.run())
    while any((jobs / ".trash").iterdir()):
        await asyncio.sleep(0.01)
    removing.cancel()

asyncio.run(until_all_is_removed())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to remove files as users")
@pytest.mark.parametrize(
    ("aged", "remaining_files"), [(False, []), (True, ["model"])], ids=["deleted", "aged"]
)
def test_restarted_service_removes_files_of_deleted_jobs_from_their_users_home(
    aged, remaining_files, home, tmp_path
):
    job_dir, worker = home / "exp-1", tmp_path / "vision/exp/attempt-1/worker-0"
    for folder in (job_dir, job_dir / "checkpoints", worker):
        folder.mkdir(parents=True)
        os.chown(folder, EVE_UID, EVE_UID)
    (job_dir / "source.py").write_text("")
    (job_dir / "checkpoints/model").write_text("")
    instructions = Instructions(
        ("true",), str(home), 1.0, uid=EVE_UID, gid=EVE_UID, user="eve", own_directory=str(job_dir)
    )
    (worker / "spec.json").write_text(json.dumps(asdict(instructions)))
    # In a separate process: ours may have library threads, which are unsafe across a fork.
    reason = "aged" if aged else "deleted"
    subprocess.run(
        [sys.executable, "-c", RESTART, tmp_path, job_dir, reason], check=True, timeout=120
    )

    assert [path.name for path in home.rglob("*") if path.is_file()] == remaining_files
