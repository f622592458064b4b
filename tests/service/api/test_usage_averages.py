"""Usage averages per project, node and user: values, caveats, and the callers allowed to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.reports import AgentReport, UsageSample
from runai.hub_service.wire.usage_schemas import UsageSeries
from runai.hub_service.wire.workload_request import SubmitRequest


def job(name: str, project: str, gpus: str) -> SubmitRequest:
    return SubmitRequest(name=name, project=project, command=["true"], gpus=Decimal(gpus))


async def test_usage_averages_are_grouped_by_project_node_and_visible_user(
    simulated, eventually_async
):
    ana, nel, root, agent = [await simulated.client(n) for n in ("ana", "nel", "root", "agent")]
    # The larger job starts first, so it also holds its GPU longer, whatever the delay between them.
    await nel.submit(job("b", "nlp", "1"))
    await ana.submit(job("exp1", "vision", "0.5"))
    devices = {w.user: w.workers[0].devices[0].uuid for w in await root.workloads()}
    began = simulated.platform.clock()

    async def second_has_passed() -> bool:
        return bool(simulated.platform.clock() > began + 1)

    await eventually_async(second_has_passed)
    samples = [
        UsageSample(workload=name, device=devices[user], utilization=busy, memory_mib=1)
        for user, name, busy in (("ana", "vision/exp1", 0.4), ("nel", "nlp/b", 0.0))
    ]
    now = simulated.platform.clock()
    await agent.report(
        AgentReport(node="lab", at=now, interval=now - began, devices=[], samples=samples)
    )

    async def usage_of_projects():
        # Usage is reported in whole seconds, the last one only when it is over.
        usage_by_name = {usage.name: usage for usage in await ana.usage_by("project")}
        assert usage_by_name["vision"].used_gpu_hours > 0
        assert usage_by_name["nlp"].idle_gpu_hours > 0
        return usage_by_name

    projects = await eventually_async(usage_of_projects)
    (node,) = await nel.usage_by("node")
    users = {
        name: [usage.name for usage in await reader.usage_by("user")]
        for name, reader in (("ana", ana), ("nel", nel), ("root", root))
    }

    assert projects["vision"].allocated_gpu_hours < projects["nlp"].allocated_gpu_hours
    assert (projects["nlp"].used_gpu_hours, projects["vision"].idle_gpu_hours) == (0, 0)
    assert 0 < (projects["vision"].utilized_average or 0) <= 0.4 + 1e-6
    assert (node.name, node.used_gpu_hours > 0) == ("lab", True)
    assert users == {"ana": ["ana"], "nel": ["nel"], "root": ["ana", "nel"]}


async def test_usage_range_that_ends_before_it_begins_is_refused(simulated):
    ana = await simulated.client("ana")
    began, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(InvalidRequest, match="ends before it begins"):
        await ana.usage_by("project", since=later, until=began)


def series(used: float, allocated: float, **fields: float | None) -> UsageSeries:
    """Return ten hours of usage of a cluster with ten GPUs."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    defaults = {
        "since": began, "until": began + timedelta(hours=10), "step_s": 3600, "capacity": 10,
        "points": [], "allocated_average": allocated / 10, "utilized_average": used / 10,
        "allocated_gpu_hours": allocated, "used_gpu_hours": used, "idle_gpu_hours": 0,
        "measured": 1, "simulated": False,
    }  # fmt: skip
    return UsageSeries.model_validate(defaults | fields)


FRACTION_CAVEAT = (
    "More was used than allocated: a fraction of a GPU may compute on what its neighbours"
)


@pytest.mark.parametrize(
    ("usage", "utilized", "caveats"),
    [
        pytest.param(series(20, 50), 2, [], id="all measured"),
        pytest.param(
            # Nine hours of one GPU while the agent was away, then one hour of ten, half of it busy.
            series(5, 19, utilized_average=5, measured=0.1),
            0.5,
            ["Measured 10 % of the time that GPUs were held"],
            id="a tenth measured",
        ),
        pytest.param(
            series(4, 3), pytest.approx(0.4), [FRACTION_CAVEAT], id="used more than allocated"
        ),
        pytest.param(
            series(0, 0, measured=None), 0, [], id="nothing allocated"
        ),
        pytest.param(
            series(0, 0, measured=None, allocated_average=None, utilized_average=None),
            None, [], id="no data",
        ),
        pytest.param(
            series(0, 1, measured=0, utilized_average=None),
            None, ["Measured 0 %"], id="allocated but not measured",
        ),
    ],
)  # fmt: skip
def test_utilized_gpu_average_covers_same_time_as_allocated_gpu_average(usage, utilized, caveats):
    assert usage.utilized_beside_allocated() == utilized
    assert len(usage.caveats()) == len(caveats)
    assert all(
        text.startswith(caveat) for text, caveat in zip(usage.caveats(), caveats, strict=True)
    )
    if usage.utilized_average is not None and usage.allocated_gpu_hours:
        ratio = usage.utilized_beside_allocated() / usage.allocated_average
        assert ratio == pytest.approx(usage.used_gpu_hours / usage.allocated_gpu_hours)
