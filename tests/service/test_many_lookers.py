"""Many who look on: what is the same for them is drawn once, what differs is not shared."""

from __future__ import annotations

from dataclasses import replace

from runai.hub_service.api.drawn_views import FEW, DrawnViews
from runai.hub_service.api.permissions import Actor
from runai.hub_service.api.queues import LastQueues, Queues
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.api.views import Viewer

ANA, MIA, OUT = Actor("ana"), Actor("mia"), Actor("out")


async def test_queues_are_put_in_order_once_for_the_same_list(simulated):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp", gpus=1, command=["train"], array=9))
    queues, records = LastQueues(), await simulated.platform.cluster.workloads()

    first = queues.of(records)

    assert queues.of(records) is first
    await ana.submit(SubmitRequest(name="more", gpus=1, command=["train"]))
    after = await simulated.platform.cluster.workloads()
    assert queues.of(after) == Queues.of(after) != first


async def test_each_sees_of_one_world_what_they_would_see_of_their_own(simulated):
    ana, mia = [await simulated.client(name) for name in ("ana", "mia")]
    for client in (ana, mia):
        await client.submit(SubmitRequest(gpus=0.5, command=["train"], array=4))
    everybody = [ANA, MIA, OUT, Actor("root", admin=True), Actor("ana", may_write=False)]
    shared = await simulated.platform.world()

    for actor in (*everybody, *everybody):  # from here on nothing happens: nothing is awaited
        alone = Viewer(replace(shared, drawn=DrawnViews(), queued=Queues.of), actor).overview()

        together = Viewer(shared, actor).overview()

        assert together == alone


async def test_what_was_drawn_of_workloads_that_are_no_more_is_forgotten(simulated):
    ana, drawn = await simulated.client("ana"), DrawnViews()
    await ana.submit(SubmitRequest(name="exp", gpus=4, command=["train"], array=FEW))
    queued = [r for r in await simulated.platform.cluster.workloads() if not r.attempts]
    assert len(queued) > FEW // 2
    view = Viewer(await simulated.platform.world(), ANA).workload(queued[0])

    for number in range(9):  # one after the other takes the place of the one before
        after = [replace(r, spec=replace(r.spec, name=f"{r.spec.name}-{number}")) for r in queued]
        drawn.retain(after)
        for record in after:
            drawn.view(record, None, None, (True, True), lambda: view)

    assert len(drawn) <= 3 * FEW


async def test_for_one_workload_no_other_job_s_reports_are_looked_at(simulated, monkeypatch):
    ana, asked = await simulated.client("ana"), []
    reply = await ana.submit(SubmitRequest(name="exp", gpus=0.5, command=["train"], array=2))
    cluster = simulated.platform.cluster
    progress = cluster.progress

    async def counted(only=None):
        asked.append(only)
        return await progress(only)

    monkeypatch.setattr(cluster, "progress", counted)
    await ana.workload(reply.workloads[0].id)
    await ana.nodes()
    await ana.projects()

    assert asked == [(reply.workloads[0].id,)]
