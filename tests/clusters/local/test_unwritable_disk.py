"""A full disk: users get an error sentence, jobs go on, and no operation is half done."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from crashes.small_disk import SmallDisk
from labs import Clock, local_lab, plan, start
from runai.hub_service.clusters.local.store import cluster_sqlite as stores
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.model.records import HistoryEvent, ProjectSpec
from runai.hub_service.wire.errors import Unavailable
from waiting import eventually_async


@pytest.fixture
def set_disk(monkeypatch):
    """Return a function that makes the disk of all databases full, read-only or writable."""
    disk = {"state": "writable"}

    @sa.event.listens_for(sa.Engine, "begin")
    def begin(connection):
        raw = connection.connection.cursor()
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages if disk['state'] == 'full' else 1_000_000}")
        raw.execute(f"PRAGMA query_only={int(disk['state'] == 'read-only')}")
        raw.close()

    def change(state: str) -> None:
        disk["state"] = state

    yield change
    sa.event.remove(sa.Engine, "begin", begin)


@pytest.mark.parametrize(
    ("state", "reason"),
    [("full", "database or disk is full"), ("read-only", "attempt to write a readonly database")],
)
async def test_job_submission_on_an_unwritable_disk_is_refused_with_the_reason(
    state, reason, set_disk, tmp_path
):
    async with local_lab(tmp_path) as lab:
        set_disk(state)
        specs = [lab.job(f"exp-{n}", source="#" * 5000) for n in range(20)]  # need new pages

        with pytest.raises(Unavailable, match=reason) as refused:
            await lab.cluster.submit(specs)

        assert "cluster.sqlite" in refused.value.message
        assert "An admin makes room" in refused.value.hint
        assert await lab.cluster.workloads() == []
        set_disk("writable")
        assert len(await lab.cluster.submit(specs)) == 20


async def test_job_exit_on_an_unwritable_disk_is_stored_once_it_is_writable(set_disk, tmp_path):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.started(spec)
        set_disk("read-only")

        await lab.end(spec, 0)
        with pytest.raises(Unavailable):
            await lab.cluster.put_project(ProjectSpec("nlp"))
        set_disk("writable")

        assert (await lab.until(spec.id, "succeeded")).exit_code == 0


async def test_job_start_on_an_unwritable_disk_is_stored_once_it_is_writable(set_disk, tmp_path):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.cluster.submit([spec])
        assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
        set_disk("read-only")
        with pytest.raises(Unavailable):
            await lab.cluster.suspend(spec.id, by="ana")
        set_disk("writable")

        assert (await lab.until(spec.id, "running")).workers[0].process is not None


@pytest.mark.parametrize("is_aged", [False, True], ids=["deleted by user", "removed by age"])
async def test_workload_deletion_that_cannot_be_stored_removes_no_file(is_aged, set_disk, tmp_path):
    clock, max_age_s = Clock(), 60.0
    async with local_lab(tmp_path, clock, retention=RetentionPolicy(max_age_s)) as lab:
        spec = lab.job(command=("sh", "-c", 'echo model > "$RUNAI_CHECKPOINT_DIR/model"'))
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        record = await lab.until(spec.id, "succeeded")
        model, jobs = Path(record.checkpoint_dir) / "model", tmp_path / "data/jobs"
        clock.at += max_age_s + 1 if is_aged else 0

        async def remove() -> None:
            if is_aged:
                lab.cluster.apply_due_transitions()
            else:
                await lab.cluster.delete(spec.id, by="ana")

        set_disk("read-only")
        with pytest.raises(Unavailable, match="Nothing can be stored now"):
            await remove()
        assert (await lab.cluster.workload(spec.id)) == record
        assert model.read_text() == "model\n"
        set_disk("writable")

        await remove()
        await lab.until_deleted(spec.id)
        await eventually_async(lambda: not any((jobs / ".trash").iterdir()))
        remaining_files = [path.name for path in jobs.rglob("*") if path.is_file()]
        # Checkpoints survive the removal of an old job.
        assert remaining_files == (["model"] if is_aged else [])


def test_workload_store_is_usable_after_a_failed_transaction(set_disk, tmp_path):
    store = SqliteStore(tmp_path / "cluster.sqlite")
    set_disk("read-only")
    with pytest.raises(Unavailable):
        store.save(deleted_projects=["nlp"])
    set_disk("writable")

    store.save(deleted_projects=["nlp"])

    store.close()


@pytest.mark.mounts
def test_workload_store_on_a_disk_with_little_space_left_remains_unhealthy(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "TRY_AGAIN_S", 0.0)
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk", mib=8)
    store = SqliteStore(disk.folder / "cluster.sqlite")
    store.save(deleted_projects=["nlp"])
    few_bytes, many_bytes = 20_000, 100_000
    (disk.folder / "file").write_bytes(b"#" * few_bytes)
    try:
        disk.fill()
        (disk.folder / "file").unlink()
        with pytest.raises(Unavailable):
            store.save(events=[("vision/exp", HistoryEvent(1.0, "note", "#" * many_bytes))])

        assert store.unhealthy_reason()
        store.save(deleted_projects=["nlp"])
        assert store.unhealthy_reason(), "a write of many bytes would still be refused"

        disk.make_room()
        assert store.unhealthy_reason() == ""
    finally:
        store.close()
        disk.unmount()


@pytest.mark.parametrize("path_has", ["nothing", "another directory"])
async def test_missing_data_directory_delays_job_starts_and_exits_until_it_is_back(
    tmp_path, path_has
):
    data, moved = tmp_path / "data", tmp_path / "moved"
    async with local_lab(tmp_path) as lab:
        running_job, waiting_job = lab.job(), lab.job("waits")
        await lab.started(running_job)
        await lab.cluster.submit([waiting_job])
        data.rename(moved)
        if path_has == "another directory":  # as the mount point of its disk
            data.mkdir()

        assert str(data) in lab.cluster.executor.unhealthy_reason()
        for change in (
            lab.cluster.submit([lab.job("later")]),
            lab.cluster.apply(plan(start(waiting_job.id, 1))),
        ):
            with pytest.raises(Unavailable, match="is gone, or another file"):
                await change
        row = lab.cluster.row(waiting_job.id)
        assert row is not None
        with pytest.raises(Unavailable):
            lab.cluster.executor.prepare_start(row, row.workers[0])
        assert [*data.glob("*")] == []

        if data.exists():
            data.rmdir()
        moved.rename(data)
        assert lab.cluster.executor.unhealthy_reason() == ""
        assert await lab.cluster.apply(plan(start(waiting_job.id, 1))) == []
        await lab.until(waiting_job.id, "running")
        await lab.end(running_job, 0)
        assert (await lab.until(running_job.id, "succeeded")).attempts == 1
