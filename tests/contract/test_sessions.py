"""A session is granted, attached to its process, and released when the process ends."""

from __future__ import annotations

import pytest

from contract.observations import observed_workload
from labs import plan, start, stop
from runai.hub_service.wire.errors import Conflict

ATTACH_WITHIN_S = 120

pytestmark = [
    pytest.mark.not_on_kubernetes("JupyterHub makes its pods itself"),
    pytest.mark.not_on_pods("JupyterHub makes the pods of sessions"),
]


async def test_session_is_granted_gpus_attached_and_released_when_its_process_ends(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    granted = await lab.cluster.workload(spec.id)
    process = await lab.session_process()
    running = await lab.cluster.attach(spec.id, process)

    assert (granted.state, granted.allocated) == ("starting", 500)
    assert running.state == "running"
    assert running.workers[0].process == process
    assert running == await lab.cluster.attach(spec.id, process)

    await lab.end_session(spec)
    ended = await lab.until(spec.id, "ended")
    assert ended.allocated == 0


async def test_granted_session_without_an_attached_process_is_released(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))

    await lab.pass_time(ATTACH_WITHIN_S - 1)
    assert (await lab.cluster.workload(spec.id)).state == "starting"
    await lab.pass_time(1)
    record = await lab.cluster.workload(spec.id)

    assert (record.state, record.allocated, record.reason.code) == ("ended", 0, "not_attached")
    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.attach(spec.id, await lab.session_process())


async def test_clock_set_back_does_not_extend_the_attach_timeout(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))

    await lab.pass_time(-3600)
    await lab.pass_time(ATTACH_WITHIN_S - 1)
    assert (await lab.cluster.workload(spec.id)).state == "starting"
    await lab.pass_time(1)

    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated, record.reason.code) == ("ended", 0, "not_attached")


async def test_session_without_an_allocation_cannot_be_attached_to(lab):
    await lab.cluster.submit([lab.session()])

    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.attach("vision/lab-ana", await lab.session_process())
    with pytest.raises(Conflict, match="holds no GPUs"):
        await lab.cluster.environment("vision/lab-ana")


async def test_reclaimed_session_ends_and_is_not_queued_again(lab):
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

    await lab.until_deleted(spec.id)


async def test_session_with_a_command_is_started_by_the_cluster_and_not_retried(lab):
    spec = lab.job("shell", kind="session", backoff_limit=3)
    await lab.started(spec)

    await lab.end(spec, 1)

    record = await lab.until(spec.id, "ended")
    assert record.exit_code == 1


@pytest.mark.parametrize("priority", [0, 70, 100])
async def test_priority_of_a_session_reaches_the_snapshot(lab, priority):
    spec = lab.session(priority=priority)
    await lab.cluster.submit([spec])

    assert (await observed_workload(lab, spec.id)).priority == priority


async def test_released_session_continues_to_run_and_regains_its_gpus(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    process = await lab.session_process()
    await lab.cluster.attach(spec.id, process)
    released = await lab.cluster.release(spec.id, why="idle for 30 min")
    observed = (await lab.cluster.observe()).workloads[0].workers[0]

    assert (released.state, released.allocated) == ("running", 0)
    assert await lab.cluster.holders() == {spec.id: released}
    assert released.workers[0].process == process
    assert (observed.gpus, observed.devices) == (0, ())
    assert released == await lab.cluster.release(spec.id, why="again")
    assert (await lab.cluster.environment(spec.id)).variables["CUDA_VISIBLE_DEVICES"] == ""

    waiting = await lab.cluster.regain(spec.id, by="ana")
    requested = (await lab.cluster.observe()).workloads[0].workers[0]
    assert (waiting.state, requested.gpus, requested.node) == ("queued", 500, None)

    await lab.cluster.apply(plan(start(spec.id, 1, share=0.5)))
    regained = await lab.cluster.workload(spec.id)
    assert (regained.state, regained.allocated) == ("running", 500)
    assert regained.workers[0].process == process

    await lab.end_session(spec)
    assert (await lab.until(spec.id, "ended")).allocated == 0


async def test_workload_other_than_a_running_session_cannot_be_released(lab):
    await lab.cluster.submit([lab.session(), lab.job("exp1")])

    for workload in ("vision/lab-ana", "vision/exp1"):
        with pytest.raises(Conflict, match="no session that runs"):
            await lab.cluster.release(workload, why="idle")
        with pytest.raises(Conflict, match="still has its GPUs"):
            await lab.cluster.regain(workload, by="ana")


async def test_ended_session_cannot_regain_its_gpus(lab):
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    await lab.cluster.attach(spec.id, await lab.session_process())
    await lab.cluster.release(spec.id, why="idle for 30 min")
    await lab.end_session(spec)
    await lab.until(spec.id, "ended")

    with pytest.raises(Conflict, match="runs no more"):
        await lab.cluster.regain(spec.id, by="ana")
    assert (await lab.cluster.workload(spec.id)).state == "ended"


async def test_session_does_not_count_as_an_unfinished_job(lab):
    await lab.cluster.submit([lab.session(), lab.job()])

    assert await lab.cluster.unfinished_jobs("ana") == 1
