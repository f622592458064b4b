"""What every cluster promises to the controller and the API, whatever it runs workloads on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from labs import NODE, Lab, plan, reserve, start, stop
from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.errors import Conflict, InvalidRequest, NotFound
from runai.hub_service.scheduler.model import (
    DeviceShare,
    LeftOut,
    Reason,
    Unreserve,
    Wait,
    WorkerState,
)
from runai.hub_service.scheduler.quantity import MilliGpu


async def _seen(lab: Lab, workload: str):
    snapshot = await lab.cluster.observe()
    return {drawn.name: drawn for drawn in snapshot.workloads}.get(workload)


async def _kinds(lab: Lab, workload: str) -> list[str]:
    return [line.kind for line in await lab.cluster.history(workload)]


# -- submit --------------------------------------------------------------------------------------


async def test_a_submitted_job_is_queued_and_the_core_sees_it(lab):
    [record] = await lab.cluster.submit([lab.job("exp", workers=2, gpus=2)])
    drawn = await _seen(lab, "vision/exp")

    assert (record.state, record.allocated) == ("queued", 0)
    assert (drawn.project, drawn.user, drawn.kind, drawn.minimum) == ("vision", "ana", "job", 2)
    assert [(f"vision/exp-{i}", 2000, WorkerState.PENDING) for i in range(2)] == [
        (w.name, w.gpus, w.state) for w in drawn.workers
    ]


async def test_an_array_is_stored_whole_or_not_at_all(lab):
    await lab.cluster.submit([lab.job("exp-1")])

    with pytest.raises(Conflict, match="vision already has a workload named exp-1") as refused:
        await lab.cluster.submit([lab.job("exp-0"), lab.job("exp-1")])

    assert "runai delete exp-1 -p vision" in refused.value.hint
    assert [record.id for record in await lab.cluster.workloads()] == ["vision/exp-1"]


async def test_two_of_one_name_in_one_submission_are_refused(lab):
    with pytest.raises(Conflict):
        await lab.cluster.submit([lab.job("exp"), lab.job("exp")])

    assert list(await lab.cluster.workloads()) == []


async def test_a_finished_name_stays_taken_until_it_is_deleted(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    with pytest.raises(Conflict):
        await lab.cluster.submit([spec])
    await lab.cluster.delete(spec.id, by="ana")

    [record] = await lab.cluster.submit([spec])
    assert record.state == "queued"


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.workload("vision/no"),
        lambda cluster: cluster.history("vision/no"),
        lambda cluster: cluster.suspend("vision/no", by="ana"),
        lambda cluster: cluster.resume("vision/no", by="ana"),
        lambda cluster: cluster.delete("vision/no", by="ana"),
        lambda cluster: cluster.environment("vision/no"),
        lambda cluster: cluster.delete_project("no"),
    ],
    ids=["workload", "history", "suspend", "resume", "delete", "environment", "delete_project"],
)
async def test_what_is_unknown_is_not_found(lab, call):
    with pytest.raises(NotFound):
        await call(lab.cluster)


# -- carrying out plans --------------------------------------------------------------------------


async def test_start_gives_devices_and_runs(lab):
    spec = lab.job(gpus=2)
    await lab.started(spec, device=1)
    record = await lab.cluster.workload(spec.id)
    [worker] = record.workers

    assert (record.allocated, record.attempts) == (2000, 1)
    assert (
        worker.state,
        worker.node,
        tuple(share.device for share in worker.devices),
    ) == ("running", NODE, (1, 2))
    assert worker.process is not None
    [drawn] = (await _seen(lab, spec.id)).workers
    assert (drawn.state, drawn.node, drawn.devices) == (WorkerState.RUNNING, NODE, (1, 2))


async def test_the_same_plan_again_changes_nothing(lab):
    spec = lab.job()
    await lab.started(spec)
    before = await lab.cluster.workload(spec.id)

    assert list(await lab.cluster.apply(plan(start(spec.id, 0)))) == []

    assert before == await lab.cluster.workload(spec.id)


async def test_a_device_is_never_given_twice(lab):
    first, second = lab.job("first"), lab.job("second")
    await lab.started(first)
    await lab.cluster.submit([second])

    [refused] = await lab.cluster.apply(plan(start(second.id, 0)))

    assert (second.id, f"device 0 of {NODE} has no room for it") == (refused.workload, refused.text)
    assert (await lab.cluster.workload(second.id)).state == "queued"


async def test_two_halves_share_a_device_and_a_third_does_not_fit(lab):
    halves = [lab.job(f"half-{i}", gpus=0.5) for i in range(3)]
    await lab.cluster.submit(halves)

    refused = await lab.cluster.apply(plan(*(start(s.id, 0, share=0.5) for s in halves)))

    assert [r.workload for r in refused] == ["vision/half-2"]
    await lab.until("vision/half-0", "running")
    await lab.until("vision/half-1", "running")


async def test_memory_requests_fill_a_device_by_their_mebibytes(lab):
    # Three of 5,333 MiB are 15,999 of 16,000; each counts 334 milli-GPU, rounded up (P3).
    thirds = [
        replace(lab.job(f"third-{i}", gpus=0), gpu_memory_mib=5333, gpus=MilliGpu(0))
        for i in range(4)
    ]
    await lab.cluster.submit(thirds)

    refused = await lab.cluster.apply(plan(*(start(s.id, 0, share=0.334) for s in thirds)))

    assert [r.workload for r in refused] == ["vision/third-3"]


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (start("vision/exp", 9), f"node {NODE} has no device 9"),
        (replace(start("vision/exp", 0), node="mars"), "there is no node mars"),
        (start("vision/exp", 0, worker=7), "vision/exp has no worker vision/exp-7"),
        (start("vision/no", 0), "there is no workload vision/no"),
        (reserve("vision/exp", 9), f"node {NODE} has no device 9"),
    ],
    ids=["device", "node", "worker", "workload", "reservation"],
)
async def test_a_decision_about_what_is_not_there_costs_only_itself(lab, decision, text):
    await lab.cluster.submit([lab.job("exp"), lab.job("other")])

    refused = await lab.cluster.apply(plan(decision, start("vision/other", 1)))

    assert [text] == [r.text for r in refused]
    await lab.until("vision/other", "running")


async def test_a_gang_starts_together_and_knows_its_places(lab):
    spec = lab.job("gang", workers=3)
    await lab.started(spec)
    environments = [(await lab.cluster.environment(spec.id, index)).variables for index in range(3)]

    assert [(e["RANK"], e["WORLD_SIZE"]) for e in environments] == [
        ("0", "3"),
        ("1", "3"),
        ("2", "3"),
    ]
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments}) == 1
    assert {"0"} == {e["LOCAL_RANK"] for e in environments}
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == ["SIM-0", "SIM-1", "SIM-2"]


async def test_part_of_a_gang_is_not_started(lab):
    spec = lab.job("gang", workers=3)
    await lab.cluster.submit([spec])

    refused = await lab.cluster.apply(
        plan(start(spec.id, 0, worker=0), start(spec.id, 1, worker=1))
    )

    assert [r.text for r in refused] == [
        "vision/gang needs 3 workers at once, the plan starts 2"
    ] * 2
    assert (await lab.cluster.workload(spec.id)).allocated == 0


async def test_a_reservation_is_held_seen_and_given_up(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    decision = reserve(spec.id, 2, waits_for=["vision/eve-0"])

    assert list(await lab.cluster.apply(plan(decision))) == []
    assert list(await lab.cluster.apply(plan(decision))) == []
    [held] = (await _seen(lab, spec.id)).workers
    assert (held.state, held.node, held.devices) == (WorkerState.RESERVED, NODE, (2,))
    assert (await lab.cluster.workload(spec.id)).allocated == 1000

    give_up = Unreserve(workload=spec.id, worker=f"{spec.id}-0")
    assert list(await lab.cluster.apply(plan(give_up, give_up))) == []
    [free] = (await _seen(lab, spec.id)).workers
    assert (free.state, free.devices) == (WorkerState.PENDING, ())


async def test_a_reserved_worker_starts_where_it_was_reserved(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(reserve(spec.id, 2)))

    assert list(await lab.cluster.apply(plan(start(spec.id, 2)))) == []

    await lab.until(spec.id, "running")


async def test_a_wait_is_remembered_and_told_once(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])

    for used in (1, 2):
        text = f"vision uses {used} of its 2 GPUs"
        reason = Reason(code="over_share", rule="S4", text=text)
        await lab.cluster.apply(plan(Wait(workload=spec.id, reason=reason, position=3)))

    record = await lab.cluster.workload(spec.id)
    assert (
        record.reason.code,
        record.reason.text,
        record.position,
    ) == ("over_share", "vision uses 2 of its 2 GPUs", 3)
    assert await _kinds(lab, spec.id) == ["queued", "waiting"]


# -- how workloads end ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "backoff_limit", "state", "failures"),
    [
        (0, 0, "succeeded", 0),
        (3, 0, "failed", 1),
        (143, 0, "failed", 1),
        (3, 1, "retrying", 1),
    ],
    ids=["success", "failure", "143 untold is a failure", "failure with a retry left"],
)
async def test_the_exit_code_decides(lab, exit_code, backoff_limit, state, failures):
    spec = lab.job(backoff_limit=backoff_limit)
    await lab.started(spec)

    await lab.end(spec, exit_code)

    record = await lab.until(spec.id, state)
    assert (0, failures) == (record.allocated, record.failures)
    assert exit_code == record.workers[0].exit_code
    assert None is await _seen(lab, spec.id)


@pytest.mark.parametrize(
    ("on_term", "state"),
    [(None, "paused"), (143, "paused"), (1, "paused"), (0, "succeeded")],
    ids=["signal", "143", "error", "0 is finished"],
)
async def test_a_worker_told_to_stop_is_paused_unless_it_has_finished(lab, on_term, state):
    spec = lab.job(on_term=on_term, backoff_limit=0)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.until(spec.id, state)
    assert (record.allocated, record.failures) == (0, 0)
    assert (1 if state == "paused" else 0) == len(record.pauses)


async def test_a_stopping_worker_holds_its_devices_until_it_is_gone(lab):
    spec, next_one = lab.job(on_term="ignore", grace_seconds=1), lab.job("next")
    await lab.started(spec)
    await lab.cluster.submit([next_one])

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated) == ("stopping", 1000)
    assert (record.reason.code, record.reason.gains) == ("reclaimed", "nlp/pat-1")
    [drawn] = (await _seen(lab, spec.id)).workers
    assert WorkerState.STOPPING is drawn.state
    [refused] = await lab.cluster.apply(plan(start(next_one.id, 0)))
    assert next_one.id == refused.workload

    await lab.until(spec.id, "paused")
    assert list(await lab.cluster.apply(plan(start(next_one.id, 0)))) == []


async def test_a_paused_job_resumes_as_the_same_job(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)
    first = await lab.cluster.workload(spec.id)
    before = (await lab.cluster.environment(spec.id)).variables
    await lab.pass_time(100)
    await lab.cluster.apply(plan(stop(spec.id)))
    paused = await lab.until(spec.id, "paused")
    drawn = await _seen(lab, spec.id)

    await lab.cluster.apply(plan(start(spec.id, 3)))
    resumed = await lab.until(spec.id, "running")
    after = (await lab.cluster.environment(spec.id)).variables

    assert (int(first.submitted), (int(paused.pauses[0]),)) == (drawn.submitted, drawn.pauses)
    assert (first.submitted, first.started) == (resumed.submitted, resumed.started)
    assert (2, first.checkpoint_dir) == (resumed.attempts, resumed.checkpoint_dir)
    assert (before["RUNAI_RESUMED"], after["RUNAI_RESUMED"]) == ("0", "1")
    assert before["RUNAI_CHECKPOINT_DIR"] == after["RUNAI_CHECKPOINT_DIR"]
    assert after["CUDA_VISIBLE_DEVICES"] == "SIM-3"


async def test_a_failed_job_is_tried_again_later_and_later_until_its_limit(lab):
    spec = lab.job(backoff_limit=2)
    await lab.started(spec)
    waits = []
    for _ in range(2):
        await lab.end(spec, 1)
        record = await lab.until(spec.id, "retrying")
        waits.append(record.not_before - lab.clock())
        await lab.pass_time(waits[-1] - 1)
        assert (await lab.cluster.workload(spec.id)).state == "retrying"
        await lab.pass_time(1)
        assert (await lab.cluster.workload(spec.id)).state == "queued"
        await lab.cluster.apply(plan(start(spec.id, 0)))
        await lab.until(spec.id, "running")
    await lab.end(spec, 1)

    record = await lab.until(spec.id, "failed")
    assert (waits, record.failures, record.attempts) == ([10.0, 20.0], 3, 3)
    assert (record.reason.code, record.reason.text) == ("exit_code", "ended with exit code 1")


async def test_one_failed_worker_stops_its_gang(lab):
    spec = lab.job("gang", workers=3)
    await lab.started(spec)

    await lab.end(spec, 7, worker=1)

    record = await lab.until(spec.id, "failed")
    assert (record.workers[1].exit_code, record.allocated, record.failures) == (7, 0, 1)
    assert record.reason.text == "worker 1 ended with exit code 7"


async def test_a_gang_succeeds_when_all_its_workers_have(lab):
    spec = lab.job("gang", workers=2)
    await lab.started(spec)

    await lab.end(spec, 0, worker=0)
    record = await lab.cluster.workload(spec.id)
    while record.workers[0].state != "finished":
        record = await lab.cluster.wait(spec.id, record)
    assert (record.state, record.allocated) == ("running", 1000)
    assert (await _seen(lab, spec.id)).minimum == 1

    await lab.end(spec, 0, worker=1)
    await lab.until(spec.id, "succeeded")


async def test_a_gang_is_paused_and_resumed_whole(lab):
    spec = lab.job("gang", workers=2)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id, 0), stop(spec.id, 1)))
    record = await lab.until(spec.id, "paused")
    assert [(w.state, w.devices) for w in record.workers] == [("pending", ())] * 2

    await lab.cluster.apply(plan(start(spec.id, 2, worker=0), start(spec.id, 3, worker=1)))
    record = await lab.until(spec.id, "running")
    assert record.attempts == 2


# -- what users wish -----------------------------------------------------------------------------


async def test_a_suspended_job_leaves_the_queue_and_returns_to_its_place(lab):
    spec = lab.job()
    [record] = await lab.cluster.submit([spec])

    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "suspended"
    assert None is await _seen(lab, spec.id)
    [refused] = await lab.cluster.apply(plan(start(spec.id, 0)))
    assert refused.text == "vision/exp is suspended"
    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "suspended"

    back = await lab.cluster.resume(spec.id, by="ana")
    assert ("queued", record.submitted) == (back.state, back.submitted)
    assert back == await lab.cluster.resume(spec.id, by="ana")
    assert await _kinds(lab, spec.id) == ["queued", "suspended", "queued"]


async def test_suspending_gives_up_a_reservation(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(reserve(spec.id, 0)))

    assert (await lab.cluster.suspend(spec.id, by="ana")).allocated == 0


async def test_suspending_a_running_job_stops_it(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "stopping"
    record = await lab.until(spec.id, "suspended")
    assert (record.pauses, record.allocated) == ((), 0)

    assert (await lab.cluster.resume(spec.id, by="ana")).state == "paused"


async def test_a_job_may_be_resumed_while_it_still_stops(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    await lab.cluster.suspend(spec.id, by="ana")
    await lab.cluster.resume(spec.id, by="ana")

    await lab.until(spec.id, "paused")


async def test_a_job_may_be_suspended_while_it_is_being_paused(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id)))
    await lab.cluster.suspend(spec.id, by="ana")

    await lab.until(spec.id, "suspended")


async def test_a_session_is_neither_suspended_nor_resumed(lab):
    await lab.cluster.submit([lab.session()])

    for wish in (lab.cluster.suspend, lab.cluster.resume):
        with pytest.raises(Conflict, match="is a session"):
            await wish("vision/lab-ana", by="ana")


async def test_a_finished_job_is_neither_suspended_nor_resumed(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    for wish in (lab.cluster.suspend, lab.cluster.resume):
        with pytest.raises(Conflict, match="is finished"):
            await wish(spec.id, by="ana")


async def test_deleting_a_queued_job_forgets_it(lab):
    await lab.cluster.submit([lab.job()])

    await lab.cluster.delete("vision/exp", by="ana")

    assert list(await lab.cluster.workloads()) == []


async def test_deleting_a_running_job_stops_it_first(lab):
    spec = lab.job(on_term=0)
    await lab.started(spec)

    await lab.cluster.delete(spec.id, by="ana")
    assert (await lab.cluster.workload(spec.id)).state == "stopping"
    await lab.cluster.delete(spec.id, by="ana")

    await lab.until_gone(spec.id)


# -- sessions ------------------------------------------------------------------------------------


async def test_a_session_is_granted_attached_and_released_with_its_process(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    granted = await lab.cluster.workload(spec.id)
    process = await lab.session_process()
    running = await lab.cluster.attach(spec.id, process)

    assert (granted.state, granted.allocated) == ("starting", 500)
    assert ("running", process) == (running.state, running.workers[0].process)
    assert running == await lab.cluster.attach(spec.id, process)

    await lab.end_session(spec)
    ended = await lab.until(spec.id, "ended")
    assert ended.allocated == 0


async def test_a_granted_session_that_nobody_attaches_to_is_released(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))

    await lab.pass_time(119)
    assert (await lab.cluster.workload(spec.id)).state == "starting"
    await lab.pass_time(1)
    record = await lab.cluster.workload(spec.id)

    assert (record.state, record.allocated, record.reason.code) == ("ended", 0, "not_attached")
    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.attach(spec.id, await lab.session_process())


async def test_a_session_without_an_allocation_cannot_be_attached_to(lab):
    await lab.cluster.submit([lab.session()])

    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.attach("vision/lab-ana", await lab.session_process())
    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.environment("vision/lab-ana")


async def test_a_reclaimed_session_ends_and_is_not_queued_again(lab):
    spec = lab.session(preemptible=True)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    await lab.cluster.attach(spec.id, await lab.session_process())

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.until(spec.id, "ended")
    assert (record.reason.code, record.allocated) == ("reclaimed", 0)


async def test_deleting_a_session_ends_its_process(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    await lab.cluster.attach(spec.id, await lab.session_process())

    await lab.cluster.delete(spec.id, by="ana")

    await lab.until_gone(spec.id)


async def test_a_session_with_a_command_is_started_by_the_cluster_and_not_tried_again(lab):
    spec = lab.job("shell", kind="session", backoff_limit=3)
    await lab.started(spec)

    await lab.end(spec, 1)

    record = await lab.until(spec.id, "ended")
    assert record.exit_code == 1


# -- environment ---------------------------------------------------------------------------------


async def test_the_environment_says_who_and_how_much(lab):
    spec = lab.job(gpus=0.5, env={"LR": "0.1", "RUNAI_WORKER": "somebody/else"}, array_index=4)
    await lab.started(spec, share=0.5)

    variables = (await lab.cluster.environment(spec.id)).variables

    expected = {
        "CUDA_VISIBLE_DEVICES": "SIM-0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "SIM-0",
        "RUNAI_WORKLOAD": "vision/exp",
        "RUNAI_WORKER": "vision/exp-0",
        "RUNAI_PROJECT": "vision",
        "RUNAI_KIND": "job",
        "RUNAI_GPU_FRACTION": "0.5",
        "RUNAI_GPU_MEMORY_LIMIT_MIB": "8000",
        "RUNAI_GPU_CONTEXT_MIB": "0",
        "RUNAI_RESUMED": "0",
        "RUNAI_ARRAY_INDEX": "4",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5000",
        "CUPY_GPU_MEMORY_LIMIT": str(8000 * 1024 * 1024),
        "LR": "0.1",
    }
    assert expected == {name: variables[name] for name in expected}
    assert "RANK" not in variables


async def test_a_workload_without_a_gpu_sees_none(lab):
    spec = lab.job(gpus=0)
    await lab.started(spec)

    variables = (await lab.cluster.environment(spec.id)).variables

    assert (
        variables["CUDA_VISIBLE_DEVICES"],
        variables["NVIDIA_VISIBLE_DEVICES"],
        variables["RUNAI_GPU_MEMORY_LIMIT_MIB"],
    ) == ("", "void", "0")


async def test_the_agent_is_told_who_holds_what(lab):
    spec = lab.job()
    await lab.started(spec, lab.job("other"))

    first, _ = await lab.cluster.allocations(NODE)

    process = (await lab.cluster.workload(spec.id)).workers[0].process
    assert (spec.id, "vision/exp-0", "vision", "ana", process) == (
        first.workload,
        first.worker,
        first.project,
        first.user,
        first.process,
    )
    assert (DeviceShare(0, MilliGpu(1000)),) == first.shares
    assert list(await lab.cluster.allocations("elsewhere")) == []


# -- projects ------------------------------------------------------------------------------------


async def test_projects_are_kept_and_the_core_sees_them(lab):
    await lab.cluster.put_project(ProjectSpec("lab", limit=MilliGpu(4000)))
    created = await lab.cluster.put_project(ProjectSpec("vision", parent="lab"))
    await lab.pass_time(5)
    spec = ProjectSpec("vision", parent="lab", quota=MilliGpu(2500), members=("ana",))
    changed = await lab.cluster.put_project(spec)

    assert (spec, created.created) == (changed.spec, changed.created)
    parent, vision = (await lab.cluster.observe()).projects
    assert (parent.quota, parent.limit) == (LeftOut.SUM_OF_CHILDREN, 4000)
    assert (vision.quota, vision.parent, vision.members) == (2500, "lab", ("ana",))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (ProjectSpec("a", parent="no"), "there is no such project"),
        (ProjectSpec("a", parent="a"), "its own ancestor: a < a"),
        (ProjectSpec("a", parent="c"), "its own ancestor: a < c < b < a"),
    ],
    ids=["unknown", "itself", "cycle"],
)
async def test_projects_stay_a_tree(lab, spec, text):
    for name, parent in [("a", None), ("b", "a"), ("c", "b")]:
        await lab.cluster.put_project(ProjectSpec(name, parent=parent))

    with pytest.raises(InvalidRequest, match=text):
        await lab.cluster.put_project(spec)

    assert None is (await lab.cluster.projects())[0].spec.parent


async def test_a_project_in_use_is_not_deleted(lab):
    await lab.cluster.put_project(ProjectSpec("lab"))
    await lab.cluster.put_project(ProjectSpec("vision", parent="lab"))
    await lab.cluster.submit([lab.job()])

    with pytest.raises(Conflict, match="has the children vision"):
        await lab.cluster.delete_project("lab")
    with pytest.raises(Conflict, match="unfinished workloads: vision/exp"):
        await lab.cluster.delete_project("vision")

    await lab.cluster.delete("vision/exp", by="ana")
    await lab.cluster.delete_project("vision")
    await lab.cluster.delete_project("lab")
    assert list(await lab.cluster.projects()) == []


async def test_the_snapshot_shows_the_nodes(lab):
    snapshot = await lab.cluster.observe()

    [node] = snapshot.nodes
    assert (node.name, node.devices, node.device_memory_mib) == (NODE, 4, 16_000)
    assert int(lab.clock()) == snapshot.now
    assert [device.uuid for device in (await lab.cluster.devices())[NODE]] == [
        "SIM-0",
        "SIM-1",
        "SIM-2",
        "SIM-3",
    ]


# -- waking --------------------------------------------------------------------------------------


async def _wakes(lab: Lab) -> bool:
    try:
        async with asyncio.timeout(0):
            await lab.cluster.changed()
    except TimeoutError:
        return False
    return True


async def test_changes_are_remembered_until_they_are_observed(lab):
    await lab.cluster.observe()
    assert not await _wakes(lab)

    await lab.cluster.submit([lab.job()])
    await lab.cluster.put_project(ProjectSpec("vision"))

    assert await _wakes(lab)
    assert await _wakes(lab)
    await lab.cluster.observe()
    assert not await _wakes(lab)


async def test_an_exit_wakes_whoever_waits(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.cluster.observe()
    woken = asyncio.ensure_future(lab.cluster.changed())

    await lab.end(spec, 0)

    async with asyncio.timeout(30):
        await woken


async def test_telling_why_somebody_waits_wakes_nobody(lab):
    await lab.cluster.submit([lab.job()])
    await lab.cluster.observe()

    reason = Reason(code="no_room", rule="P1", text="all 4 GPUs are taken")
    await lab.cluster.apply(plan(Wait(workload="vision/exp", reason=reason, position=1)))

    assert not await _wakes(lab)


async def test_waiting_for_one_workload_returns_its_next_state(lab):
    spec = lab.session()
    [seen] = await lab.cluster.submit([spec])
    waiting = asyncio.ensure_future(lab.cluster.wait(spec.id, seen))
    await lab.cluster.put_project(ProjectSpec("unrelated"))

    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))

    async with asyncio.timeout(30):
        assert (await waiting).state == "starting"


async def test_waiting_for_what_is_deleted_ends(lab):
    [seen] = await lab.cluster.submit([lab.job()])
    waiting = asyncio.ensure_future(lab.cluster.wait(seen.id, seen))
    await asyncio.sleep(0)

    await lab.cluster.delete(seen.id, by="ana")

    with pytest.raises(NotFound):
        await waiting
