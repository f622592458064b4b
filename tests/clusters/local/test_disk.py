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
def disk(monkeypatch):
    """Return a function that sets the outcome of the next transactions of every database."""
    state = {"pragma": ""}

    @sa.event.listens_for(sa.Engine, "begin")
    def begin(connection):
        raw = connection.connection.cursor()
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages if state['pragma'] == 'full' else 1_000_000}")
        raw.execute(f"PRAGMA query_only={int(state['pragma'] == 'read-only')}")
        raw.close()

    def become(pragma: str) -> None:
        state["pragma"] = pragma

    yield become
    sa.event.remove(sa.Engine, "begin", begin)


@pytest.mark.parametrize(
    ("state", "why"),
    [("full", "database or disk is full"), ("read-only", "attempt to write a readonly database")],
)
async def test_job_submission_on_an_unwritable_disk_is_refused_with_the_reason(
    state, why, disk, tmp_path
):
    async with local_lab(tmp_path) as lab:
        disk(state)
        many = [lab.job(f"exp-{n}", source="#" * 5000) for n in range(20)]

        with pytest.raises(Unavailable, match=why) as refused:
            await lab.cluster.submit(many)

        assert "cluster.sqlite" in refused.value.message
        assert "An admin makes room" in refused.value.hint
        assert await lab.cluster.workloads() == []
        disk("")
        assert len(await lab.cluster.submit(many)) == 20


async def test_job_exit_on_an_unwritable_disk_is_stored_once_it_is_writable(disk, tmp_path):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.started(spec)
        disk("read-only")

        await lab.end(spec, 0)
        with pytest.raises(Unavailable):
            await lab.cluster.put_project(ProjectSpec("nlp"))
        disk("")

        assert (await lab.until(spec.id, "succeeded")).exit_code == 0


async def test_job_start_on_an_unwritable_disk_is_stored_once_it_is_writable(disk, tmp_path):
    async with local_lab(tmp_path) as lab:
        spec = lab.job()
        await lab.cluster.submit([spec])
        assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
        disk("read-only")
        with pytest.raises(Unavailable):
            await lab.cluster.suspend(spec.id, by="ana")
        disk("")

        assert (await lab.until(spec.id, "running")).workers[0].process is not None


@pytest.mark.parametrize("aged", [False, True], ids=["deleted", "aged"])
async def test_workload_deletion_that_cannot_be_stored_removes_no_file(aged, disk, tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, retention=RetentionPolicy(max_age_s=60.0)) as lab:
        spec = lab.job(command=("sh", "-c", 'echo model > "$RUNAI_CHECKPOINT_DIR/model"'))
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        record = await lab.until(spec.id, "succeeded")
        model, jobs = Path(record.checkpoint_dir) / "model", tmp_path / "data/jobs"
        clock.at += 61.0 if aged else 0.0

        async def forget() -> None:
            if aged:
                lab.cluster.apply_due_transitions()
            else:
                await lab.cluster.delete(spec.id, by="ana")

        disk("read-only")
        with pytest.raises(Unavailable, match="Nothing can be stored now"):
            await forget()
        assert (await lab.cluster.workload(spec.id)) == record
        assert model.read_text() == "model\n"
        disk("")

        await forget()
        await lab.until_deleted(spec.id)
        await eventually_async(lambda: not any((jobs / ".trash").iterdir()))
        left = [path.name for path in jobs.rglob("*") if path.is_file()]
        assert left == (["model"] if aged else [])


def test_workload_store_is_usable_after_a_failed_transaction(disk, tmp_path):
    store = SqliteStore(tmp_path / "cluster.sqlite")
    disk("read-only")
    with pytest.raises(Unavailable):
        store.save(deleted_projects=["x"])
    disk("")

    store.save(deleted_projects=["x"])

    store.close()


@pytest.mark.mounts
def test_workload_store_on_a_disk_with_little_space_left_remains_unhealthy(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "TRY_AGAIN_S", 0.0)
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk", 8)
    store = SqliteStore(disk.folder / "cluster.sqlite")
    store.save(deleted_projects=["x"])
    (disk.folder / "little").write_bytes(b"#" * 20_000)
    try:
        disk.fill()
        (disk.folder / "little").unlink()
        with pytest.raises(Unavailable):
            store.save(events=[("vision/exp", HistoryEvent(1.0, "note", "#" * 100_000))])

        assert store.unhealthy_reason()
        store.save(deleted_projects=["x"])
        assert store.unhealthy_reason(), "as large a one would still be refused"

        disk.make_room()
        assert store.unhealthy_reason() == ""
    finally:
        store.close()
        disk.unmount()


@pytest.mark.parametrize("left", ["nothing", "another directory"])
async def test_missing_data_directory_delays_job_starts_and_exits_until_it_is_back(tmp_path, left):
    data, aside = tmp_path / "data", tmp_path / "aside"
    async with local_lab(tmp_path) as lab:
        runs, waits = lab.job(), lab.job("waits")
        await lab.started(runs)
        await lab.cluster.submit([waits])
        data.rename(aside)
        if left == "another directory":  # as the mount point of its disk
            data.mkdir()

        assert str(data) in lab.cluster.unhealthy_reason()
        for refused in (
            lab.cluster.submit([lab.job("later")]),
            lab.cluster.apply(plan(start(waits.id, 1))),
        ):
            with pytest.raises(Unavailable, match="is gone, or another file"):
                await refused
        row = lab.cluster.row(waits.id)
        assert row is not None
        with pytest.raises(Unavailable):
            lab.cluster.prepare_start(row, row.record.workers[0])
        assert [*data.glob("*")] == []

        if data.exists():
            data.rmdir()
        aside.rename(data)
        assert lab.cluster.unhealthy_reason() == ""
        assert await lab.cluster.apply(plan(start(waits.id, 1))) == []
        await lab.until(waits.id, "running")
        await lab.end(runs, 0)
        assert (await lab.until(runs.id, "succeeded")).attempts == 1
