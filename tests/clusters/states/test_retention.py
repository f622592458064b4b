"""Retention of finished workloads: for a time, up to a total, with a share for each user."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs import Clock, local_lab, plan, start
from runai.hub_service.clusters.simulated import MemoryStore, SimulatedCluster, simulated_cluster
from runai.hub_service.clusters.states.retention import FinishedWorkloads, RetentionPolicy
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.wire.errors import NotFound
from waiting import eventually_async

POLICY = RetentionPolicy(max_age_s=1000.0, max_finished=4, min_age_s=10.0)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [  # user:end of each workload; kept 1000 s, at most four, each at least 10 s
        pytest.param("", None, id="no workload"),
        pytest.param("ana:5", (1005.0, "ana/5"), id="one workload"),
        pytest.param("ana:5 bo:3", (1003.0, "bo/3"), id="two workloads"),
        pytest.param("ana:5 ana:6 bo:3 bo:7", (1003.0, "bo/3"), id="four workloads"),
        pytest.param("ana:5 ana:6 ana:7 bo:3 bo:4", (15.0, "ana/5"), id="one too many"),
        pytest.param("bo:3 ana:5 ana:6 ana:7 ana:8", (15.0, "ana/5"), id="older job of bo"),
        pytest.param(
            "bo:-2000 ana:5 ana:6 ana:7 ana:8", (-1000.0, "bo/-2000"), id="job of bo past its age"
        ),
    ],
)
def test_next_finished_workload_to_drop_is_chosen_by_age_and_users_total(ended, expected):
    finished = FinishedWorkloads(POLICY)
    for entry in ended.split():
        user, at = entry.split(":")
        finished.add(f"{user}/{at}", user, float(at))

    assert finished.next_expiry() == expected


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_retention_drops_only_jobs_of_the_user_with_too_many_jobs(seed):
    rng = random.Random(seed)
    finished = FinishedWorkloads(RetentionPolicy(max_age_s=1e9, max_finished=30, min_age_s=0.0))
    users = {f"{user}/{n}": user for user, many in (("bo", 10), ("cy", 10)) for n in range(many)}
    flood = {f"ana/{n}": "ana" for n in range(100)}
    names = [*users, *flood]
    rng.shuffle(names)
    for now, name in enumerate(names):
        finished.add(name, name.partition("/")[0], float(now))
        while (due := finished.next_expiry()) is not None and due[0] <= now:
            finished.discard(due[1], due[1].partition("/")[0])

    assert len(finished) == 30
    retained = []
    while (due := finished.next_expiry()) is not None:
        retained.append(due[1])
        finished.discard(due[1], due[1].partition("/")[0])
    assert {name for name in retained if not name.startswith("ana")} == set(users)
    latest = [name for name in names if name.startswith("ana")][-10:]  # a third of the 30
    assert [name for name in retained if name.startswith("ana")] == latest


class RetentionLab:
    """A cluster of one device whose jobs end at once, with a clock of its own."""

    def __init__(self, retention: RetentionPolicy) -> None:
        self.now = 0.0
        self.retention = retention
        self.store = MemoryStore()
        self.cluster = self.open_cluster()

    def open_cluster(self) -> SimulatedCluster:
        devices = [Device(0, "SIM-0", "Simulated GPU", 1000, simulated=True)]
        return simulated_cluster(
            {"box": devices}, clock=lambda: self.now, store=self.store, retention=self.retention
        )

    async def run_job(self, name: str, user: str = "ana") -> str:
        await self.cluster.put_project(ProjectSpec("vision"))
        await self.cluster.submit([WorkloadSpec("vision", name, user, "job", ("true",))])
        await self.cluster.apply(decide(await self.cluster.observe()))
        self.cluster.executor.complete(f"vision/{name}")
        return f"vision/{name}"

    async def names(self) -> list[str]:
        return [record.spec.name for record in await self.cluster.workloads()]


async def test_finished_workload_is_dropped_after_its_time_and_frees_its_name():
    lab = RetentionLab(POLICY)
    workload = await lab.run_job("exp")
    assert lab.cluster.apply_due_transitions() == POLICY.max_age_s
    lab.now = 1000.0

    assert lab.cluster.apply_due_transitions() is None
    with pytest.raises(NotFound):
        await lab.cluster.workload(workload)
    assert list(lab.store.history(workload)) == []
    assert await lab.run_job("exp") == workload


async def test_retention_drops_the_oldest_jobs_of_the_largest_user_after_a_delay():
    lab = RetentionLab(POLICY)
    await lab.run_job("bos", "bo")
    for number in range(5):
        lab.now += 1
        await lab.run_job(f"exp-{number}")

    assert lab.cluster.apply_due_transitions() == 1 + POLICY.min_age_s  # exp-0 ended at 1
    assert len(await lab.names()) == 6
    lab.now = 12.0
    lab.cluster.apply_due_transitions()
    assert await lab.names() == ["bos", "exp-2", "exp-3", "exp-4"]


async def test_retention_never_drops_waiting_or_running_workloads():
    lab = RetentionLab(RetentionPolicy(max_age_s=10.0, max_finished=0, min_age_s=0.0))
    await lab.cluster.put_project(ProjectSpec("vision"))
    spec = WorkloadSpec("vision", "runs", "ana", "job", ("true",))
    await lab.cluster.submit([spec])
    await lab.cluster.apply(decide(await lab.cluster.observe()))
    await lab.cluster.submit([WorkloadSpec("vision", "waits", "ana", "job", ("true",))])
    lab.now = 1e9

    assert lab.cluster.apply_due_transitions() is None
    assert await lab.names() == ["runs", "waits"]


async def test_workloads_are_dropped_in_the_order_they_ended_after_a_restart():
    lab = RetentionLab(POLICY)
    await lab.cluster.put_project(ProjectSpec("vision"))
    specs = [WorkloadSpec("vision", name, "ana", "job", ("true",)) for name in ("first", "second")]
    await lab.cluster.submit(specs)
    await lab.cluster.apply(decide(await lab.cluster.observe()))
    lab.now = 5.0
    lab.cluster.executor.complete("vision/second")
    lab.now = 6.0
    lab.cluster.executor.complete("vision/first")

    lab.cluster = lab.open_cluster()

    assert lab.cluster.apply_due_transitions() == 5 + POLICY.max_age_s
    lab.now = 1005.5
    lab.cluster.apply_due_transitions()
    assert await lab.names() == ["first"]


async def test_wait_call_for_a_workload_dropped_by_retention_raises_not_found():
    lab = RetentionLab(POLICY)
    workload = await lab.run_job("exp")
    record = await lab.cluster.workload(workload)
    waiting = asyncio.ensure_future(lab.cluster.wait(workload, record))
    await asyncio.sleep(0)
    lab.now = 1000.0
    lab.cluster.apply_due_transitions()

    with pytest.raises(NotFound):
        await waiting


async def test_deletion_of_a_project_deletes_all_of_its_finished_workloads():
    lab = RetentionLab(POLICY)
    names = [await lab.run_job(f"exp-{number}") for number in range(12)]

    await lab.cluster.delete_project("vision")

    assert len(names) == 12
    assert await lab.names() == []


# -- the workload's files on the disk ------------------------------------------------------------

SAVING_SCRIPT = 'echo said; echo model > "$RUNAI_CHECKPOINT_DIR/model"'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(SAVING_SCRIPT, {"model"}, id="checkpoints"),
        pytest.param("echo said", set(), id="output alone"),
    ],
)
async def test_retention_moves_only_checkpoints_of_a_dropped_job_aside(tmp_path, script, expected):
    clock = Clock()
    policy = RetentionPolicy(max_age_s=60.0)
    async with local_lab(tmp_path, clock, retention=policy) as lab:
        spec = lab.job("exp", command=("sh", "-c", script))
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        submitted = int((await lab.until(spec.id, "succeeded")).submitted)
        clock.at += 61.0
        lab.cluster.apply_due_transitions()
        await lab.until_deleted(spec.id)

        jobs = tmp_path / "data" / "jobs"
        aside = jobs / ".kept" / f"{spec.id}-{submitted}"
        assert {path.name for path in aside.glob("*")} == expected
        assert not (jobs / spec.id).exists()
        await eventually_async(lambda: not list((jobs / ".trash").iterdir()))


async def test_deleted_project_retains_the_checkpoints_of_its_workloads(tmp_path):
    async with local_lab(tmp_path, Clock()) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        spec = lab.job("exp", command=("sh", "-c", SAVING_SCRIPT))
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        submitted = int((await lab.until(spec.id, "succeeded")).submitted)
        await lab.cluster.delete_project("vision")

        jobs = tmp_path / "data" / "jobs"
        assert list(await lab.cluster.workloads()) == []
        assert (jobs / ".kept" / f"{spec.id}-{submitted}" / "model").exists()
        assert not (jobs / spec.id).exists()
