"""Queue positions and reasons of thousands of jobs: updates are atomic and block no other task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.clusters.workloads.queue_status import LONG_QUEUE
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu

DEVICES = [Device(0, "SIM-0", "Simulated GPU", 1000, simulated=True)]
PROJECTS = ("nlp", "vision")
JOBS_PER_PROJECT = 2 * LONG_QUEUE


def jobs(project: str) -> list[WorkloadSpec]:
    whole_gpu = MilliGpu(1000)
    return [
        WorkloadSpec(project, f"exp-{n}", "ana", "job", ("train",), gpus=whole_gpu)
        for n in range(JOBS_PER_PROJECT)
    ]


class MovingQueues:
    """One job of two long queues has ended: the next one starts, and the rest move up."""

    def __init__(self) -> None:
        self.cluster = simulated_cluster({"box": DEVICES}, clock=lambda: 100.0)
        self.turns = 0

    async def begin(self) -> None:
        for project in PROJECTS:
            await self.cluster.put_project(ProjectSpec(project, quota=MilliGpu(1000)))
            await self.cluster.submit(jobs(project))
        await self.cycle()
        await self.cycle()
        (running,) = [r for r in await self.cluster.workloads() if r.has_devices]
        self.cluster.executor.complete(running.id)

    async def cycle(self) -> None:
        await self.cluster.apply(decide(await self.cluster.observe()))

    async def cycle_beside(self, action: Callable[[], object]) -> None:
        """Run `act` in each turn of the event loop while the plan is carried out."""
        cycle_task = asyncio.ensure_future(self.cycle())
        await asyncio.sleep(0)
        while not cycle_task.done():
            self.turns += 1
            result = action()
            if asyncio.iscoroutine(result):
                await result
            await asyncio.sleep(0)
        await cycle_task

    async def positions(self) -> dict[str, int | None]:
        return {record.id: record.position for record in await self.cluster.workloads()}


def is_in_order(records: list[WorkloadRecord]) -> bool:
    """Return True if no two jobs of a project have the same position."""
    positions = Counter((r.spec.project, r.position) for r in records if r.position is not None)
    return max(positions.values()) == 1


async def test_concurrent_readers_never_see_two_jobs_at_one_queue_position():
    moving = MovingQueues()
    await moving.begin()
    before, are_in_order = await moving.positions(), []

    async def check_order() -> None:
        are_in_order.append(is_in_order(list(await moving.cluster.workloads())))

    await moving.cycle_beside(check_order)

    moved = [w for w, position in (await moving.positions()).items() if position != before[w]]
    assert len(moved) >= JOBS_PER_PROJECT - 2
    assert are_in_order
    assert all(are_in_order)
    assert is_in_order(list(await moving.cluster.workloads()))


async def test_job_suspended_or_deleted_during_a_queue_update_is_not_queued_again():
    moving = MovingQueues()
    await moving.begin()
    ids = [
        f"{project}/exp-{n}"
        for project in PROJECTS
        for n in (JOBS_PER_PROJECT // 2, JOBS_PER_PROJECT - 1)
    ]

    suspended, deleted = ids[::2], ids[1::2]

    async def suspend_and_delete() -> None:
        if moving.turns == 1:
            for workload in suspended:
                await moving.cluster.suspend(workload, by="ana")
            for workload in deleted:
                await moving.cluster.delete(workload, by="ana")

    await moving.cycle_beside(suspend_and_delete)

    positions = await moving.positions()
    assert moving.turns >= 1
    assert [positions[workload] for workload in suspended] == [None, None]
    assert not positions.keys() & set(deleted)


async def test_job_resumed_during_a_queue_update_gets_its_position_next_time():
    moving, undisturbed = MovingQueues(), MovingQueues()
    await moving.begin()
    await undisturbed.begin()

    async def suspend_and_resume() -> None:
        if moving.turns == 1:
            for project in PROJECTS:
                await moving.cluster.suspend(f"{project}/exp-{JOBS_PER_PROJECT - 1}", by="ana")
                await moving.cluster.resume(f"{project}/exp-{JOBS_PER_PROJECT - 1}", by="ana")

    await moving.cycle_beside(suspend_and_resume)
    await moving.cycle()
    for _ in range(2):
        await undisturbed.cycle()

    assert await moving.positions() == await undisturbed.positions()


async def test_cancelled_queue_update_is_completed_by_the_next_plan():
    moving, undisturbed = MovingQueues(), MovingQueues()
    await moving.begin()
    await undisturbed.begin()

    cycle_task = asyncio.ensure_future(moving.cycle())
    await asyncio.sleep(0)
    assert not cycle_task.done()
    cycle_task.cancel()
    await asyncio.wait({cycle_task})
    await moving.cycle()
    for _ in range(2):
        await undisturbed.cycle()

    assert await moving.positions() == await undisturbed.positions()


async def test_new_job_never_shares_its_queue_position():
    moving = MovingQueues()
    await moving.begin()
    await moving.cluster.submit(
        [
            WorkloadSpec("nlp", f"new-{n}", "mia", "job", ("train",), gpus=MilliGpu(1000))
            for n in range(150)
        ]
    )

    async def check_order() -> None:
        assert is_in_order(list(await moving.cluster.workloads()))

    for _ in range(3):
        await moving.cycle_beside(check_order)
    assert all(p is not None for w, p in (await moving.positions()).items() if "new-" in w)
