"""A large array is inserted in chunks and becomes visible atomically.

Other requests run between the chunks, and see all of the array or nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from labs import Lab
from runai.hub_service.clusters.workloads.arrivals import WRITTEN
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.wire.errors import Conflict, Unavailable

MANY = 6 * WRITTEN + 1

pytestmark = pytest.mark.not_on_kubernetes("a Job is stored by the API server, each by itself")


def array(lab: Lab, name: str = "exp", **fields: str) -> list[WorkloadSpec]:
    return [lab.job(f"{name}-{index}", array_index=index, **fields) for index in range(MANY)]


async def half_way(lab: Lab, specs: list[WorkloadSpec]) -> asyncio.Task[object]:
    """Start to submit, and return the task while it is still running."""
    coming = asyncio.create_task(lab.cluster.submit(specs))
    for _ in range(4):
        await asyncio.sleep(0)
    assert not coming.done()
    return coming


async def ids(lab: Lab) -> list[str]:
    return [record.id for record in await lab.cluster.workloads()]


async def test_requests_run_between_chunks_and_see_all_of_the_array_or_nothing(lab):
    specs = array(lab)
    coming = await half_way(lab, specs)
    seen = list[int]()
    while not coming.done():
        seen.append(len(await ids(lab)))
        await asyncio.sleep(0)
    await coming

    assert len(seen) > MANY / WRITTEN
    assert set(seen) <= {0, MANY}
    assert await ids(lab) == [spec.id for spec in specs]
    snapshot = await lab.cluster.observe()
    assert {workload.name for workload in snapshot.workloads} == {spec.id for spec in specs}
    assert [line.kind for line in await lab.cluster.history(specs[-1].id)] == ["queued"]


async def test_all_of_it_is_unfinished_once_it_is_there(lab):
    coming = await half_way(lab, array(lab))

    assert await lab.cluster.unfinished_jobs("ana") == 0
    await coming
    assert await lab.cluster.unfinished_jobs("ana") == MANY


async def test_job_submitted_during_an_array_insert_is_stored_at_once(lab):
    coming = await half_way(lab, array(lab))

    await lab.cluster.submit([lab.job("quick")])

    assert (await ids(lab), coming.done()) == (["vision/quick"], False)
    await coming
    assert len(await ids(lab)) == MANY + 1


async def test_the_same_key_meanwhile_is_answered_with_what_is_stored(lab):
    first = await half_way(lab, array(lab, key="the-same-key"))

    again = await lab.cluster.submit(array(lab, "other", key="the-same-key"))

    assert again == await first
    assert len(await ids(lab)) == MANY


@pytest.mark.parametrize("many", [1, MANY], ids=["one", "an array"])
async def test_a_name_of_it_is_taken_once_it_is_there(lab, many):
    specs = array(lab)
    first = await half_way(lab, specs)

    with pytest.raises(Conflict, match="already has a workload named exp-"):
        await lab.cluster.submit(specs[-many:])

    assert first.done()


async def test_cancelled_array_submission_leaves_no_workloads(lab):
    specs = array(lab)
    coming = await half_way(lab, specs)
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)

    assert await ids(lab) == []
    await lab.cluster.submit(specs)
    assert await ids(lab) == [spec.id for spec in specs]


async def test_waiting_submission_gets_its_name_when_the_array_is_cancelled(lab):
    specs = array(lab)
    first = await half_way(lab, specs)
    second = asyncio.create_task(lab.cluster.submit(specs[-1:]))
    await asyncio.sleep(0)
    first.cancel()

    await second

    assert await ids(lab) == [specs[-1].id]


async def test_its_project_is_not_deleted_meanwhile(lab):
    await lab.cluster.put_project(ProjectSpec("vision"))
    coming = await half_way(lab, array(lab))

    with pytest.raises(Conflict):
        await lab.cluster.delete_project("vision")

    await coming


@pytest.mark.parametrize("part", ["arrive", "arrived"])
async def test_nothing_is_left_of_one_that_could_not_be_stored(lab, part, monkeypatch):
    specs = array(lab)
    store = lab.cluster._store

    def full(*_args: object, **_fields: object) -> None:
        raise Unavailable("The disk is full.", hint="Make room.")

    with monkeypatch.context() as patched:
        patched.setattr(store, part, full)
        with pytest.raises(Unavailable):
            await lab.cluster.submit(specs)

    assert await ids(lab) == []
    await lab.cluster.submit(specs)
    assert len(await ids(lab)) == MANY


async def test_thousands_are_drawn_for_the_core_while_they_come(lab):
    """Otherwise the first cycle that observes them would block all other requests."""
    await lab.cluster.submit(array(lab))
    observing, turns = asyncio.ensure_future(lab.cluster.observe()), 0

    while not observing.done():
        turns += 1
        await asyncio.sleep(0)

    assert turns <= 2
    assert len((await observing).workloads) == len(array(lab))
