"""The allocations reported to node agents, which attribute GPU usage to workloads."""

from __future__ import annotations

import pytest

from control_plane.objects import pod
from kubernetes_lab import kubernetes_lab
from labs import NODE, SimulatedLab, plan, start
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.wire.errors import Conflict
from runai.hub_service.wire.reports import AgentReport
from waiting import eventually_async

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def lab(plane):
    async with kubernetes_lab(plane) as made:
        yield made


async def test_allocations_list_the_pod_and_user_of_each_device(lab):
    spec = lab.job(workers=2)
    await lab.started(spec)
    job_pods = lab.around.namespace.pods("vision-exp")

    allocations = await lab.cluster.allocations(NODE)

    assert {(a.workload, a.worker, a.user, a.cgroup) for a in allocations} == {
        (spec.id, f"{spec.id}-{index}", "ana", job_pod["metadata"]["uid"])
        for index, job_pod in enumerate(job_pods)
    }
    assert sorted(share.device for a in allocations for share in a.shares) == [0, 1]
    assert list(await lab.cluster.allocations("elsewhere")) == []


async def test_allocations_omit_pods_without_devices_and_ended_pods(lab):
    server = pod("cpu-only", 0, annotations={"hub.jupyter.org/username": "ana"})
    server["spec"]["nodeName"] = NODE
    lab.around.namespace.create(server)
    spec = lab.job()
    await lab.started(spec)

    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    async def has_no_allocations() -> bool:
        return not await lab.cluster.allocations(NODE)

    await eventually_async(has_no_allocations)


async def test_idle_release_of_a_pod_session_is_refused(tmp_path):
    lab = SimulatedLab()
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    record = await lab.cluster.attach(spec.id, await lab.session_process())
    ledger = Ledger(tmp_path / "ledger.sqlite")
    idle = IdleWatch(lab.simulated, ledger, releases=False)  # as for sessions in pods
    await idle.observe(AgentReport(node=NODE, at=0, interval=1, devices=[], samples=[]))

    with pytest.raises(Conflict, match="no running session with GPUs"):
        await idle.release(record, by="ana")
    ledger.close()
