"""Job arrays: one record for all elements that have not begun, and a name for each of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from labs import DEVICES, Lab, plan, start
from runai.hub_service.model.arrays import element
from runai.hub_service.model.records import ProjectSpec, WorkloadRecord
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound

pytestmark = pytest.mark.not_on_pods("arrays come later")

ARRAY_SIZE = 3 * len(DEVICES)
"""Three times as many jobs as the node has devices; each job requests one, so four start."""


async def submit_array(lab: Lab, size: int = ARRAY_SIZE, **fields: Any) -> WorkloadRecord:
    await lab.cluster.put_project(ProjectSpec("vision", quota=None))
    spec = lab.job("sweep", array=size, **fields)
    [record] = await lab.cluster.submit([spec])
    return record


async def states_by_id(lab: Lab) -> dict[str, str]:
    return {r.id: f"{r.state} {r.size}" for r in await lab.cluster.workloads()}


async def run_cycle(lab: Lab) -> list[str]:
    """Carry out the scheduler's plan; return the workloads that it starts, in order."""
    cycle_plan = decide(await lab.cluster.observe())
    assert await lab.cluster.apply(cycle_plan) == []
    started = [decision.workload for decision in cycle_plan.decisions if decision.kind == "start"]
    for workload in started:
        await lab.until(workload, "starting", "running")
    return started


async def test_array_is_one_record_until_its_elements_start(lab):
    record = await submit_array(lab)

    assert await states_by_id(lab) == {"vision/sweep": f"queued {ARRAY_SIZE}"}
    assert (record.id, record.spec.array) == ("vision/sweep", ARRAY_SIZE)
    assert record.left == ((0, ARRAY_SIZE),)

    assert await run_cycle(lab) == [f"vision/sweep-{n}" for n in range(4)]

    assert (await states_by_id(lab)).keys() == {
        "vision/sweep",
        *(f"vision/sweep-{n}" for n in range(4)),
    }
    array = await lab.cluster.workload("vision/sweep")
    assert array.size == ARRAY_SIZE - 4
    assert sum(array.states.values()) == ARRAY_SIZE
    assert array.states["queued"] == ARRAY_SIZE - 4


async def test_array_elements_start_in_index_order(lab):
    await submit_array(lab, gpus=0.25)

    assert await run_cycle(lab) == [f"vision/sweep-{n}" for n in range(ARRAY_SIZE)]
    assert "vision/sweep" not in await states_by_id(lab)


async def test_scheduler_receives_one_more_array_element_than_can_start(lab):
    await submit_array(lab, 10_000)

    observed = (await lab.cluster.observe()).workloads

    assert [w.name for w in observed] == [f"vision/sweep-{n}" for n in range(len(DEVICES) + 1)]


@pytest.mark.parametrize("name", ["sweep", "sweep-0", f"sweep-{ARRAY_SIZE - 1}"])
@pytest.mark.parametrize("has_begun", [False, True], ids=["waiting array", "array that has begun"])
async def test_names_of_an_array_and_its_elements_are_refused_to_new_jobs(lab, name, has_begun):
    await submit_array(lab)
    if has_begun:
        await run_cycle(lab)

    with pytest.raises(Conflict, match=f"already has a workload named {name} "):
        await lab.cluster.submit([lab.job(name)])
    assert f"vision/{name}" in await lab.cluster.names()


async def test_array_with_one_taken_element_name_is_refused_whole(lab):
    await lab.cluster.submit([lab.job("sweep-3"), lab.job(f"sweep-{ARRAY_SIZE}")])

    with pytest.raises(Conflict, match="already has a workload named sweep-3 "):
        await submit_array(lab)

    assert set(await states_by_id(lab)) == {"vision/sweep-3", f"vision/sweep-{ARRAY_SIZE}"}


@pytest.mark.parametrize("name", [f"sweep-{ARRAY_SIZE}", "sweep-01", "sweep-", "sweep-x", "swee-0"])
async def test_name_that_is_no_array_element_is_free_and_unknown(lab, name):
    await submit_array(lab)

    assert f"vision/{name}" not in await lab.cluster.names()
    with pytest.raises(NotFound):
        await lab.cluster.workload(f"vision/{name}")


async def test_array_submitted_twice_with_the_same_key_is_stored_once(lab):
    first = await submit_array(lab, key="the-same-key")
    [second] = await lab.cluster.submit([lab.job("other", array=3, key="the-same-key")])

    assert second == first


async def test_unfinished_job_count_includes_each_array_element(lab):
    await submit_array(lab)
    await run_cycle(lab)

    assert await lab.cluster.unfinished_jobs("ana") == ARRAY_SIZE


@pytest.mark.not_on_kubernetes("its Job gives a pod its environment")
async def test_array_element_has_its_own_record_environment_and_history(lab):
    record = await submit_array(lab)
    before = await lab.cluster.workload("vision/sweep-2")
    assert (before.state, before.submitted, before.size) == ("queued", record.submitted, 1)
    assert [e.kind for e in await lab.cluster.history("vision/sweep-2")] == ["queued"]

    await run_cycle(lab)

    element_2 = element(record.spec, 2)
    lab.record_on_term(element_2, None)
    await lab.until(element_2.id, "running")
    assert (await lab.cluster.environment(element_2.id)).variables["RUNAI_ARRAY_INDEX"] == "2"
    history = await lab.cluster.history(element_2.id)
    assert [e.kind for e in history][:2] == ["queued", "starting"]
    assert history[0].at == record.submitted


async def test_array_record_has_the_wait_reason_of_its_next_element(lab):
    await submit_array(lab)
    await run_cycle(lab)
    await lab.cluster.submit([lab.job("tail")])
    await run_cycle(lab)

    array = await lab.cluster.workload("vision/sweep")
    tail = await lab.cluster.workload("vision/tail")

    assert array.reason is not None
    assert array.reason.code == "no_room"
    assert (array.position, tail.position) == (1, 2)
    last = await lab.cluster.workload(f"vision/sweep-{ARRAY_SIZE - 1}")
    assert last.reason == array.reason


async def test_wait_of_an_array_element_does_not_change_the_queue_position_of_the_array(lab):
    await submit_array(lab)
    reason = Reason(code="no_room", rule="P1", text="all 4 GPUs are taken")
    await lab.cluster.observe()

    await lab.cluster.apply(plan(Wait(workload="vision/sweep-0", reason=reason, position=7)))

    assert (await lab.cluster.workload("vision/sweep")).position == 1


# ---- changes


async def test_deleted_array_element_never_starts(lab):
    await submit_array(lab)
    for index in (0, 2):
        await lab.cluster.delete(f"vision/sweep-{index}", by="ana")

    assert await states_by_id(lab) == {"vision/sweep": f"queued {ARRAY_SIZE - 2}"}
    assert await run_cycle(lab) == [f"vision/sweep-{n}" for n in (1, 3, 4, 5)]
    with pytest.raises(NotFound):
        await lab.cluster.workload("vision/sweep-2")


@pytest.mark.not_on_kubernetes("an array is one Job, which is suspended whole")
async def test_suspended_array_element_waits_until_it_is_resumed(lab):
    await submit_array(lab)

    suspended = await lab.cluster.suspend("vision/sweep-0", by="ana")

    assert (suspended.id, suspended.state) == ("vision/sweep-0", "suspended")
    assert (await lab.cluster.workload("vision/sweep")).states == {
        "suspended": 1,
        "queued": ARRAY_SIZE - 1,
    }
    assert await run_cycle(lab) == [f"vision/sweep-{n}" for n in (1, 2, 3, 4)]
    assert (await lab.cluster.resume("vision/sweep-0", by="ana")).state == "queued"


async def test_whole_array_is_suspended_and_resumed(lab):
    await submit_array(lab)
    await run_cycle(lab)

    array = await lab.cluster.suspend("vision/sweep", by="ana")

    assert array.states["suspended"] >= ARRAY_SIZE - 4
    assert (await lab.cluster.workload("vision/sweep-9")).state == "suspended"
    assert not (await lab.cluster.observe()).workloads or await run_cycle(lab) == []
    for index in range(4):
        await lab.until(f"vision/sweep-{index}", "suspended")
    resumed = await lab.cluster.resume("vision/sweep", by="ana")
    assert Counter(resumed.states) == {"queued": ARRAY_SIZE - 4, "paused": 4}


async def test_deleting_an_array_stops_its_running_elements(lab):
    record = await submit_array(lab)
    await run_cycle(lab)
    for index in range(4):
        lab.record_on_term(element(record.spec, index), None)
        await lab.until(f"vision/sweep-{index}", "running")

    await lab.cluster.delete("vision/sweep", by="ana")

    for index in range(4):
        await lab.until_deleted(f"vision/sweep-{index}")
    assert await states_by_id(lab) == {}
    with pytest.raises(NotFound):
        await lab.cluster.workload("vision/sweep")


async def test_whole_array_ends_with_its_last_element(lab):
    record = await submit_array(lab, 2)
    assert await run_cycle(lab) == ["vision/sweep-0", "vision/sweep-1"]
    for index, code in ((0, 0), (1, 3)):
        spec = element(record.spec, index)
        lab.record_on_term(spec, None)
        await lab.until(spec.id, "running")
        await lab.ready(spec)
        await lab.end(spec, code)
        await lab.until(spec.id, "succeeded", "failed")

    array = await lab.cluster.workload("vision/sweep")

    assert (array.state, array.exit_code) == ("failed", 3)
    assert array.states == {"succeeded": 1, "failed": 1}
    assert array.finished is not None
    await lab.cluster.delete("vision/sweep", by="ana")
    assert await states_by_id(lab) == {}


async def test_single_job_operations_are_refused_for_an_array(lab):
    await submit_array(lab)

    for operation in (
        lab.cluster.environment("vision/sweep"),
        lab.cluster.scale("vision/sweep", workers=2, min_workers=None, by="ana"),
        lab.cluster.release("vision/sweep", why="idle"),
        anext(aiter(lab.cluster.logs("vision/sweep", worker=None, tail=None, follow=False))),
    ):
        with pytest.raises(
            (Conflict, InvalidRequest), match=f"is an array of {ARRAY_SIZE} jobs"
        ) as refused:
            await operation
        assert f"sweep-0 to sweep-{ARRAY_SIZE - 1}" in refused.value.hint


@pytest.mark.not_on_kubernetes("the Job controller makes pods by their index")
async def test_repeated_start_of_an_array_element_changes_nothing(lab):
    await submit_array(lab)
    start_plan = plan(start("vision/sweep-5", 0))

    for _ in range(2):
        assert await lab.cluster.apply(start_plan) == []

    record = await lab.cluster.workload("vision/sweep-5")
    assert record.attempts == 1
    assert (await lab.cluster.workload("vision/sweep")).size == ARRAY_SIZE - 1
