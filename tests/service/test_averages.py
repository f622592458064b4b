"""Averages over time of everybody at once: who is told of whom, and what of them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from runai.hub_service.api.reports import AgentReport, UsageSample
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.errors import InvalidRequest


def job(name: str, project: str, gpus: str) -> SubmitRequest:
    return SubmitRequest(name=name, project=project, command=["true"], gpus=Decimal(gpus))


async def test_averages_are_told_by_project_by_node_and_of_users_to_admins(
    simulated, eventually_async
):
    ana, nel, root, agent = [await simulated.client(n) for n in ("ana", "nel", "root", "agent")]
    await ana.submit(job("exp1", "vision", "0.5"))
    await nel.submit(job("b", "nlp", "1"))
    devices = {w.user: w.workers[0].devices[0].uuid for w in await root.workloads()}
    began = simulated.platform.clock()

    async def some_time_later() -> bool:
        return bool(simulated.platform.clock() > began + 1)

    await eventually_async(some_time_later)
    samples = [
        UsageSample(workload=name, device=devices[user], utilization=busy, memory_mib=1)
        for user, name, busy in (("ana", "vision/exp1", 0.4), ("nel", "nlp/b", 0.0))
    ]
    now = simulated.platform.clock()
    await agent.report(
        AgentReport(node="lab", at=now, interval=now - began, devices=[], samples=samples)
    )

    async def counted():
        # Whole seconds are told: the last one is, when it is over.
        found = {one.name: one for one in await ana.usage_by("project")}
        assert found["vision"].used_gpu_hours > 0
        assert found["nlp"].idle_gpu_hours > 0
        return found

    projects = await eventually_async(counted)
    (node,) = await nel.usage_by("node")
    users = {
        client: [one.name for one in await asked.usage_by("user")]
        for client, asked in (("ana", ana), ("nel", nel), ("root", root))
    }

    assert projects["vision"].allocated_gpu_hours < projects["nlp"].allocated_gpu_hours
    assert (projects["nlp"].used_gpu_hours, projects["vision"].idle_gpu_hours) == (0, 0)
    assert 0 < (projects["vision"].utilized_average or 0) <= 0.4 + 1e-6
    assert (node.name, node.used_gpu_hours > 0) == ("lab", True)
    assert users == {"ana": ["ana"], "nel": ["nel"], "root": ["ana", "nel"]}


async def test_a_range_that_ends_before_it_begins_is_refused(simulated):
    ana = await simulated.client("ana")
    began, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(InvalidRequest, match="ends before it begins"):
        await ana.usage_by("project", since=later, until=began)
