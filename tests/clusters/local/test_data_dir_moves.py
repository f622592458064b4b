"""A copy of a data directory leaves the original's work alone, and a moved one goes on with it."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labs import DEVICES, NODE, Clock, LocalLab, local_lab, plan, start
from runai.embedded.backup.backups import back_up
from runai.embedded.backup.restore import restore
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local import data_dir_checks
from runai.hub_service.clusters.local.data_dir_checks import check_place
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.store.cluster_lock import LOCK
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.wire.errors import Conflict, Unavailable
from waiting import eventually_async

SAVED_STEP = 27
SAVING_PROGRAM = f"""
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"], "step")
print("begin at", saved.read_text() if saved.exists() else 0, flush=True)
saved.write_text("{SAVED_STEP}")
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
while True:
    time.sleep(1000)
"""


def saving_job(lab: LocalLab, **fields):
    return lab.job(command=(sys.executable, "-I", "-S", "-c", SAVING_PROGRAM), **fields)


async def log_text(lab: LocalLab, workload: str) -> str:
    chunks = lab.cluster.logs(workload, worker=None, tail=None, follow=False)
    return b"".join([chunk.lines async for chunk in chunks]).decode()


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def restore_backup(source: Path, target: Path) -> None:
    archive = back_up(DataDirectory(source), target.with_name("backups"))
    restore(DataDirectory(target), archive)


# -- copies without the log ----------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", None], ids=["empty file", "file without its log"])
async def test_workload_database_without_tables_beside_job_folders_is_refused(tmp_path, content):
    copied = tmp_path / "copied"
    (copied / "jobs" / "vision" / "exp").mkdir(parents=True)
    with closing(SqliteStore(tmp_path / "cluster.sqlite")):  # a running platform
        shutil.copyfile(tmp_path / "cluster.sqlite", copied / "cluster.sqlite")
    if content is not None:
        (copied / "cluster.sqlite").write_bytes(content)
    before = (copied / "cluster.sqlite").read_bytes()

    with pytest.raises(Unavailable, match=r"cluster\.sqlite is empty, and .*jobs has directories"):
        async with open_local_cluster(copied, DEVICES, NODE):
            pass

    assert (copied / "cluster.sqlite").read_bytes() == before
    shutil.rmtree(copied / "jobs")
    # Without job folders it is as after a crash of the first start.
    async with open_local_cluster(copied, DEVICES, NODE) as cluster:
        assert await cluster.workloads() == []


# -- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_closed", "expected"),
    [(False, f"where a platform runs: process {os.getpid()}"), (True, "still run: vision/exp")],
    ids=["running service", "jobs without a service"],
)
@pytest.mark.parametrize("make_copy", [copy, restore_backup], ids=["files", "backup"])
async def test_copied_data_directory_with_running_jobs_is_refused_and_the_jobs_run_on(
    tmp_path, make_copy, is_closed, expected
):
    original, other = tmp_path / "data", tmp_path / "other" / "data"
    clock = Clock()

    async def assert_refused() -> None:
        with pytest.raises(Conflict) as conflict:
            async with open_local_cluster(other, DEVICES, NODE, clock=clock):
                pass
        for name in (str(original), str(other), expected):
            assert name in str(conflict.value)

    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143)
        await lab.started(spec)
        other.parent.mkdir()
        make_copy(original, other)
        if not is_closed:
            await assert_refused()
    if is_closed:
        await assert_refused()

    async with local_lab(tmp_path, clock) as lab:
        assert (await lab.cluster.workload(spec.id)).attempts == 1
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")


async def test_copied_data_directory_is_refused_while_the_original_is_open(
    tmp_path,
):
    async with local_lab(tmp_path):
        copy(tmp_path / "data", tmp_path / "copy")
        with pytest.raises(Conflict, match="where a platform runs"):
            check_place(tmp_path / "copy")


async def test_copied_data_directory_is_refused_while_a_session_of_the_original_runs(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.session()
        await lab.started(spec)
        process = await lab.session_process()
        await lab.cluster.attach(spec.id, process)
        copy(tmp_path / "data", tmp_path / "copy")
    try:
        with pytest.raises(Conflict, match=r"still run: vision/lab-ana"):
            check_place(tmp_path / "copy")
    finally:
        lab.close()
    check_place(tmp_path / "copy")


async def test_copied_data_directory_of_a_stopped_platform_uses_its_own_files(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = saving_job(lab)
        await lab.cluster.submit([spec])
    copy(tmp_path / "data", tmp_path / "copy")

    async with (
        open_local_cluster(tmp_path / "copy", DEVICES, NODE, clock=clock) as cluster,
        local_lab(tmp_path, clock) as lab,
    ):
        copied_record, original_record = (
            await cluster.workload(spec.id),
            await lab.cluster.workload(spec.id),
        )

    assert copied_record.log_dir == str(tmp_path / "copy/jobs/vision/exp")
    assert copied_record.checkpoint_dir == str(tmp_path / "copy/jobs/vision/exp/checkpoints")
    assert original_record.log_dir == str(tmp_path / "data/jobs/vision/exp")
    check_place(tmp_path / "copy")  # the copy has its own path now, whatever runs in the original


# -- moves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_current_lock", [True, False], ids=["current", "earlier"])
async def test_job_resumes_at_its_checkpoint_after_the_data_directory_moved(
    tmp_path, has_current_lock
):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "moved" / "data"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        home = old / "users" / "ana"
        home.mkdir(parents=True)
        spec = saving_job(lab, workdir=str(home), env={"PYTHONPATH": f"{home}:/usr/lib"})
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        await eventually_async(old.joinpath("jobs/vision/exp/checkpoints/step").exists)
        await lab.cluster.suspend(spec.id, by="ana")
        await lab.until(spec.id, "suspended")
    new.parent.mkdir()
    old.rename(new)
    if not has_current_lock:
        (new / LOCK).write_text('{"pid": 7, "since": 1.5}')

    async with local_lab(tmp_path / "moved", clock) as lab:
        await lab.cluster.resume(spec.id, by="ana")
        await lab.cluster.apply(plan(start(spec.id, 0)))
        await eventually_async(lambda: log_has_line(lab, spec.id, f"begin at {SAVED_STEP}\n"))
        record = await lab.cluster.workload(spec.id)

    moved_home = new / "users/ana"
    assert record.spec.workdir == str(moved_home)
    assert record.spec.env["PYTHONPATH"] == f"{moved_home}:/usr/lib"
    assert not old.exists()


async def log_has_line(lab: LocalLab, workload: str, line: str) -> bool:
    return line in await log_text(lab, workload)


async def test_data_directory_moved_under_running_jobs_opens_only_through_a_link(
    tmp_path,
):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "moved"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        spec = lab.job(on_term=143)
        await lab.started(spec)
    old.rename(new)

    with pytest.raises(Conflict) as refused:
        check_place(new)
    assert refused.value.message == (
        f"{new} was {old} before, and workloads that began there still run: vision/exp."
    )
    old.symlink_to(new)  # as the hint says
    async with open_local_cluster(new, DEVICES, NODE, clock=clock) as cluster:
        assert (await cluster.workload(spec.id)).attempts == 1
    async with local_lab(tmp_path, clock) as lab:
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")


async def test_moved_data_directory_opens_beside_a_platform_at_its_old_path(tmp_path):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "moved"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    old.rename(new)

    async with (
        local_lab(tmp_path, clock),
        open_local_cluster(new, DEVICES, NODE, clock=clock) as cluster,
    ):
        [record] = await cluster.workloads()

    assert record.log_dir == str(new / "jobs/vision/exp")


async def test_restored_data_directory_backup_opens_beside_a_platform_at_the_original_path(
    tmp_path,
):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "restored"
    DataDirectory(old).prepare(system_users=False)
    async with local_lab(tmp_path, clock, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    restore_backup(old, new)
    shutil.rmtree(old)  # the original was on another machine
    DataDirectory(old).prepare(system_users=False)

    async with local_lab(tmp_path, clock) as lab:
        await lab.started(lab.job("running"))
        async with open_local_cluster(new, DEVICES, NODE, clock=clock) as cluster:
            [record] = await cluster.workloads()

    assert record.log_dir == str(new / "jobs/vision/exp")


async def test_array_elements_start_in_the_new_path_after_the_data_directory_moved(tmp_path):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "moved" / "data"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        await lab.cluster.submit([saving_job(lab, name="sweep", array=3, workdir=str(old))])
    new.parent.mkdir()
    old.rename(new)

    async with local_lab(tmp_path / "moved", clock) as lab:
        await lab.cluster.apply(plan(start("vision/sweep-0", 0)))
        await eventually_async(new.joinpath("jobs/vision/sweep-0/checkpoints/step").exists)
        record = await lab.cluster.workload("vision/sweep-0")

    assert record.spec.workdir == str(new)
    assert record.log_dir == str(new / "jobs/vision/sweep-0")
    assert not old.exists()


async def test_interrupted_path_update_of_a_moved_data_directory_is_finished_on_reopening(
    tmp_path, monkeypatch
):
    clock, old, new = Clock(), tmp_path / "data", tmp_path / "moved"
    async with local_lab(tmp_path, clock, forget=False) as lab:
        await lab.cluster.submit([lab.job()])
    old.rename(new)
    with monkeypatch.context() as broken:
        broken.setattr(SqliteStore, "replace", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            async with open_local_cluster(new, DEVICES, NODE, clock=clock):
                pass

    async with open_local_cluster(new, DEVICES, NODE, clock=clock) as cluster:
        [record] = await cluster.workloads()

    assert record.log_dir == str(new / "jobs/vision/exp")


@pytest.mark.parametrize(
    ("text", "moved_text"),
    [
        ("/srv/data", "/new/data"),
        ("/srv/data/users/ana/train.py", "/new/data/users/ana/train.py"),
        ("--out=/srv/data/users/ana", "--out=/new/data/users/ana"),
        ("/srv/data/a:/lib:/srv/data/b", "/new/data/a:/lib:/new/data/b"),
        ("/srv/data2/a", "/srv/data2/a"),
        ("/mnt/srv/data/a", "/mnt/srv/data/a"),
        ("echo /srv/data/a", "echo /srv/data/a"),  # a program's text is its user's
    ],
)
def test_path_mover_changes_only_paths_below_the_old_data_directory(text, moved_text):
    assert data_dir_checks.path_mover(Path("/srv/data"), Path("/new/data"))(text) == moved_text


PATH_PARTS = st.text("ab.+\\1é ", max_size=8)


@given(PATH_PARTS, PATH_PARTS, PATH_PARTS)
@example("x", ".", r"\1")
def test_path_mover_is_undone_by_the_opposite_mover(tail, old_name, new_name):
    old, new = Path(f"/was{old_name}"), Path(f"/now{new_name}")

    assert data_dir_checks.path_mover(old, new)(f"{old}/{tail}") == f"{new}/{tail}"
    assert data_dir_checks.path_mover(new, old)(f"{new}/{tail}") == f"{old}/{tail}"
