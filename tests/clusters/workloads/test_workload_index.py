"""The cost of thousands of waiting jobs: only changes are built and stored."""

from __future__ import annotations

import asyncio
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.clusters.simulated import MemoryStore, SimulatedCluster, simulated_cluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec, WorkloadState
from runai.hub_service.scheduler import ClusterIndex, changes_between, decide
from runai.hub_service.scheduler.model.quantity import MilliGpu

DEVICES = [Device(0, "SIM-0", "Simulated GPU", 1000, simulated=True)]
JOB_COUNT = 300


class CountingStore(MemoryStore):
    """A store that records which rows were written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def save(self, rows=(), **fields) -> None:
        self.written += [row.id for row in rows]
        super().save(rows, **fields)


def job(number: int, key: str = "") -> WorkloadSpec:
    return WorkloadSpec(
        "vision", f"exp-{number}", "ana", "job", ("train",), gpus=MilliGpu(1000), key=key
    )


async def cluster_with_queued_jobs() -> tuple[SimulatedCluster, CountingStore]:
    """One job runs, the rest wait with a reason."""
    store = CountingStore()
    cluster = simulated_cluster({"box": DEVICES}, clock=lambda: 100.0, store=store)
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1000)))
    await cluster.observe()
    await cluster.submit([job(n) for n in range(JOB_COUNT)])
    for _ in range(2):
        await cluster.apply(decide(await cluster.observe()))
    store.written.clear()
    return cluster, store


async def test_scheduling_cycle_stores_no_rows_of_unchanged_waiting_jobs():
    cluster, store = await cluster_with_queued_jobs()

    await cluster.apply(decide(await cluster.observe()))

    assert store.written == []


async def test_job_that_left_and_rejoined_the_queue_gets_its_former_position():
    """The scheduler sees no change, and gives the same reason."""
    cluster, _ = await cluster_with_queued_jobs()
    before_suspension = await cluster.observe()
    index = ClusterIndex(before_suspension)
    for _ in range(2):
        await cluster.apply(decide(index))
    before = await cluster.workload("vision/exp-7")
    await cluster.suspend(before.id, by="ana")
    await cluster.resume(before.id, by="ana")
    assert (await cluster.workload(before.id)).position is None

    index.apply(changes_between(before_suspension, await cluster.observe()))
    await cluster.apply(decide(index))

    after = await cluster.workload(before.id)
    assert (after.position, after.reason) == (before.position, before.reason)


async def test_changed_queue_position_is_reported_but_not_stored():
    cluster, store = await cluster_with_queued_jobs()
    last_before = await cluster.workload(f"vision/exp-{JOB_COUNT - 1}")

    cluster.executor.complete("vision/exp-0")
    await cluster.apply(decide(await cluster.observe()))

    assert set(store.written) == {"vision/exp-0", "vision/exp-1"}
    last_after = await cluster.workload(f"vision/exp-{JOB_COUNT - 1}")
    assert last_before.position is not None
    assert last_after.position == last_before.position - 1


async def test_snapshot_reuses_objects_of_unchanged_workloads():
    cluster, _ = await cluster_with_queued_jobs()
    before = {w.name: w for w in (await cluster.observe()).workloads}

    await cluster.submit([job(JOB_COUNT)])
    after = {w.name: w for w in (await cluster.observe()).workloads}

    assert len(after) == JOB_COUNT + 1
    assert all(after[name] is workload for name, workload in before.items())


async def test_queue_positions_are_the_same_after_a_restart():
    cluster, store = await cluster_with_queued_jobs()
    cluster.executor.complete("vision/exp-0")
    await cluster.apply(decide(await cluster.observe()))
    positions = {r.id: r.position for r in await cluster.workloads()}

    restarted = simulated_cluster({"box": DEVICES}, clock=lambda: 100.0, store=store)
    await restarted.apply(decide(await restarted.observe()))

    assert {r.id: r.position for r in await restarted.workloads()} == positions


async def test_workload_is_found_by_its_submission_key_until_it_is_deleted():
    cluster, _ = await cluster_with_queued_jobs()
    (stored,) = await cluster.submit([job(JOB_COUNT, key="a-key")])

    assert list(await cluster.submitted("ana", "a-key")) == [stored]
    assert list(await cluster.submitted("bo", "a-key")) == []
    await cluster.delete(stored.id, by="ana")
    assert list(await cluster.submitted("ana", "a-key")) == []


@given(
    st.lists(
        st.sampled_from(["submit", "two at once", "delete", "cycle", "end", "look"]), max_size=40
    )
)
def test_workload_list_matches_the_rows_and_earlier_lists_stay_unchanged(actions):
    async def play() -> None:
        cluster = simulated_cluster({"box": DEVICES}, clock=lambda: 100.0)
        await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1000)))
        numbers, listings = count(), []
        for action in actions:
            records = await cluster.workloads() if action in {"delete", "end", "look"} else ()
            if action == "submit":
                await cluster.submit([job(next(numbers))])
            elif action == "two at once":
                await cluster.submit([job(next(numbers)), job(next(numbers))])
            elif action == "cycle":
                await cluster.apply(decide(await cluster.observe()))
            elif action == "delete" and records:
                await cluster.delete(records[len(records) // 2].id, by="ana")
            elif action == "end":
                for record in records:
                    if record.state is WorkloadState.RUNNING:
                        cluster.executor.complete(record.id)
            else:
                listings.append((records, list(records)))

        current = await cluster.workloads()
        assert list(current) == list(cluster.index.values())
        assert all(list(listed) == then for listed, then in listings)
        assert await cluster.workloads() is current

    asyncio.run(play())
