"""Queue positions and reasons of thousands of jobs: updates are atomic and block no other task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container

from runai.hub_service.clusters.simulated import SimulatedCluster
from runai.hub_service.clusters.workloads.queue_status import AT_A_TIME, FIRST_OF_ONE, WRITTEN_DOWN
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler import Index, decide
from runai.hub_service.scheduler.model.quantity import MilliGpu

DEVICES = [Device(0, "SIM-0", "Simulated GPU", 1000, simulated=True)]
PROJECTS = ("nlp", "vision")
EACH = 2 * AT_A_TIME


def jobs(project: str) -> list[WorkloadSpec]:
    one = MilliGpu(1000)
    return [
        WorkloadSpec(project, f"exp-{n}", "ana", "job", ("train",), gpus=one) for n in range(EACH)
    ]


class Moving:
    """One job of two long queues has ended: the next one starts, and the rest move up."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster({"box": DEVICES}, clock=lambda: 100.0)
        self.turns = 0

    async def begin(self) -> None:
        for project in PROJECTS:
            await self.cluster.put_project(ProjectSpec(project, quota=MilliGpu(1000)))
            await self.cluster.submit(jobs(project))
        self.index = Index(await self.cluster.observe())
        await self.cycle()
        await self.cycle()
        (runs,) = [r for r in await self.cluster.workloads() if r.holds_devices]
        self.cluster.complete(runs.id)

    async def cycle(self) -> None:
        self.index.follow(await self.cluster.observe())
        await self.cluster.apply(decide(self.index))

    async def cycle_beside(self, act: Callable[[], object]) -> None:
        """Run `act` in each turn of the event loop while the plan is carried out."""
        telling = asyncio.ensure_future(self.cycle())
        await asyncio.sleep(0)
        while not telling.done():
            self.turns += 1
            result = act()
            if asyncio.iscoroutine(result):
                await result
            await asyncio.sleep(0)
        await telling

    async def places(self) -> dict[str, int | None]:
        return {record.id: record.position for record in await self.cluster.workloads()}


def is_in_order(records: list[WorkloadRecord]) -> bool:
    """Return True if no two jobs of a project have the same position."""
    places = Counter((r.spec.project, r.position) for r in records if r.position is not None)
    return max(places.values()) == 1


async def test_concurrent_readers_never_see_two_jobs_at_one_queue_position():
    moving = Moving()
    await moving.begin()
    before, seen = await moving.places(), []

    async def look() -> None:
        seen.append(is_in_order(list(await moving.cluster.workloads())))

    await moving.cycle_beside(look)

    moved = [w for w, place in (await moving.places()).items() if place != before[w]]
    assert len(moved) >= EACH - 2
    assert len(seen) >= len(moved) // AT_A_TIME - 1
    assert all(seen)
    assert is_in_order(list(await moving.cluster.workloads()))


async def test_job_suspended_or_deleted_during_an_update_stays_so():
    moving = Moving()
    await moving.begin()
    ids = [f"{project}/exp-{n}" for project in PROJECTS for n in (EACH // 2, EACH - 1)]

    async def leave() -> None:
        if moving.turns == 1:
            for workload in ids[::2]:
                await moving.cluster.suspend(workload, by="ana")
            for workload in ids[1::2]:
                await moving.cluster.delete(workload, by="ana")

    await moving.cycle_beside(leave)

    places = await moving.places()
    assert moving.turns >= 1
    assert [places[workload] for workload in ids[::2]] == [None, None]
    assert not places.keys() & set(ids[1::2])


async def test_job_resumed_during_an_update_gets_its_position_from_the_next_plan():
    moving, undisturbed = Moving(), Moving()
    await moving.begin()
    await undisturbed.begin()

    async def come_back() -> None:
        if moving.turns == 1:
            for project in PROJECTS:
                await moving.cluster.suspend(f"{project}/exp-{EACH - 1}", by="ana")
                await moving.cluster.resume(f"{project}/exp-{EACH - 1}", by="ana")

    await moving.cycle_beside(come_back)
    await moving.cycle()
    for _ in range(2):
        await undisturbed.cycle()

    assert await moving.places() == await undisturbed.places()


async def test_a_telling_that_was_broken_off_is_made_up_for_by_the_next_plan():
    moving, undisturbed = Moving(), Moving()
    await moving.begin()
    await undisturbed.begin()

    telling = asyncio.ensure_future(moving.cycle())
    await asyncio.sleep(0)
    assert not telling.done()
    telling.cancel()
    await asyncio.wait({telling})
    await moving.cycle()
    for _ in range(2):
        await undisturbed.cycle()

    assert await moving.places() == await undisturbed.places()


async def test_urgent_plan_overtakes_a_running_queue_update():
    moving = Moving()
    await moving.begin()
    await moving.cycle()
    await moving.cycle_beside(lambda: None)
    # Deleting a waiting job moves a queue up: that is not urgent.
    waits = [r.id for r in await moving.cluster.workloads() if r.position == 1]
    for workload in waits:
        await moving.cluster.delete(workload, by="ana")
    before, moving.turns = await moving.places(), 0
    quick = WorkloadSpec("vision", "quick", "mia", "job", ("train",), gpus=MilliGpu(1000))

    async def submit_then_look() -> None:
        if moving.turns == 1:
            await moving.cluster.submit([quick])
        assert is_in_order(list(await moving.cluster.workloads()))

    await moving.cycle_beside(submit_then_look)
    assert moving.turns == 1
    places = await moving.places()
    assert [w for w, place in places.items() if place == before.get(w, place)] != []
    moving.turns = 0
    await moving.cycle_beside(lambda: None)

    places = await moving.places()
    assert moving.turns > 1
    assert is_in_order(list(await moving.cluster.workloads()))
    for project in PROJECTS:
        waiting = sorted(p for w, p in places.items() if p and w.startswith(project))
        assert waiting == list(range(1, len(waiting) + 1))


async def test_new_job_never_shares_a_queue_position_with_another_job():
    moving = Moving()
    await moving.begin()
    await moving.cluster.submit(
        [
            WorkloadSpec("nlp", f"new-{n}", "mia", "job", ("train",), gpus=MilliGpu(1000))
            for n in range(3 * WRITTEN_DOWN)
        ]
    )

    async def look() -> None:
        assert is_in_order(list(await moving.cluster.workloads()))

    for _ in range(3):
        await moving.cycle_beside(look)
    assert all(p is not None for w, p in (await moving.places()).items() if "new-" in w)


async def test_new_job_of_a_short_queue_gets_its_position_before_long_queues_move():
    moving = Moving()
    await moving.begin()
    for _ in range(2):
        await moving.cycle()
    for record in await moving.cluster.workloads():
        if record.position == 1:
            await moving.cluster.delete(record.id, by="ana")
    await moving.cluster.put_project(ProjectSpec("audio"))
    quick = WorkloadSpec("audio", "quick", "mia", "job", ("train",), gpus=MilliGpu(1000))
    await moving.cluster.submit([quick])
    before = await moving.places()

    def moved() -> int:
        records = moving.cluster._rows.records()
        return sum(r.position != before[r.id] for r in records if r.spec.user == "ana")

    others_when_it_knew = []

    def told(who: Container[str]) -> None:
        if "audio/quick" in who:
            others_when_it_knew.append(moved())

    moving.index.follow(await moving.cluster.observe())
    await moving.cluster.apply(decide(moving.index), told=told)

    (others,) = others_when_it_knew
    assert others < EACH < moved()


async def test_each_plan_reports_part_of_an_array_and_another_job_at_once():
    cluster = SimulatedCluster({"box": DEVICES}, clock=lambda: 100.0)
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1000)))
    one, many = MilliGpu(1000), 2 * FIRST_OF_ONE
    await cluster.observe()  # beside an urgent change little of an array would be seen
    await cluster.submit(
        [
            WorkloadSpec("vision", f"exp-{n}", "ana", "job", ("train",), gpus=one)
            for n in range(many + 1)
        ]
    )
    await cluster.observe()
    await cluster.submit([WorkloadSpec("vision", "mine", "mia", "job", ("train",), gpus=one)])
    told = []

    while True:
        await cluster.apply(decide(await cluster.observe()))
        waits = [r for r in await cluster.workloads() if r.position is not None]
        told.append((len(waits), any(r.spec.user == "mia" for r in waits)))
        if len(waits) == many + 1:
            break

    assert told == [(FIRST_OF_ONE + 1, True), (many + 1, True)]
    assert is_in_order(list(await cluster.workloads()))
    lines = await cluster.history(f"vision/exp-{many}")
    assert [line.kind for line in lines].count("waiting") == 1
