"""A cluster on a store whose changes become durable later: who is answered waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from labs import DEVICES, NODE, plan, start
from runai.hub_service.clusters.simulated import MemoryStore, SimulatedCluster, simulated_cluster
from runai.hub_service.model.records import Process, ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu


class LaterStore(MemoryStore):
    """A store that makes changes durable when `may_store` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def stored(self, workloads: Collection[str]) -> None:
        await self.may_store.wait()


async def session_in(state: str, cluster: SimulatedCluster) -> None:
    """Submit the session vision/lab, and bring it to a state."""
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1000)))
    spec = WorkloadSpec("vision", "lab", "ana", "session", None, gpus=MilliGpu(1000))
    if state == "queued":
        spec = replace(spec, kind="job", command=("train",))
    await cluster.submit([spec])
    if state != "queued":
        await cluster.apply(plan(start(spec.id, 0)))
    if state in ("running", "released"):
        await cluster.attach(spec.id, Process(7, 1.0))
    if state == "released":
        await cluster.release(spec.id, why="idle")


CHANGES = {
    "submit": ("queued", lambda c: c.submit([WorkloadSpec("vision", "b", "ana", "job", ("x",))])),
    "suspend": ("queued", lambda c: c.suspend("vision/lab", by="ana")),
    "resume": ("queued", lambda c: c.resume("vision/lab", by="ana")),
    "attach": ("starting", lambda c: c.attach("vision/lab", Process(7, 1.0))),
    "release": ("running", lambda c: c.release("vision/lab", why="idle")),
    "regain": ("released", lambda c: c.regain("vision/lab", by="ana")),
    "delete": ("queued", lambda c: c.delete("vision/lab", by="ana")),
}
"""Changes by users and their servers, each with the state before."""


@pytest.mark.parametrize("change", CHANGES)
async def test_answer_to_a_change_waits_until_it_is_durable(change):
    store = LaterStore()
    cluster = simulated_cluster({NODE: DEVICES}, clock=lambda: 100.0, store=store)
    state, call = CHANGES[change]
    await session_in(state, cluster)
    if change == "resume":
        await cluster.suspend("vision/lab", by="ana")
    before = await cluster.workloads()
    store.may_store.clear()

    answer = asyncio.ensure_future(call(cluster))
    for _ in range(5):
        await asyncio.sleep(0)

    assert await cluster.workloads() != before, "others see it already"
    assert not answer.done()
    store.may_store.set()
    await answer
