"""The service is away for long: what the ledger knows afterwards is a gap, never a zero."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from runai.hub_service.agent.loop import KEPT_REPORTS, Agent
from runai.hub_service.agent.simulated import SimulatedDevices
from runai.hub_service.api.reports import AgentReply, AgentReport, DeviceSample, UsageSample
from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger import Held, Ledger, UsageFilter

START = 1_800_000_000
AWAY_S = 1200
HALF = [Held("vision", "ana", "vision/a", "GPU-0", 1000, "here")]


class Flaky:
    """A service that is away at first."""

    def __init__(self) -> None:
        self.away = True
        self.asked = 0
        self.taken: list[AgentReport] = []

    async def report(self, report: AgentReport) -> AgentReply:
        await asyncio.sleep(0)
        self.asked += 1
        if self.away:
            raise Unavailable("away")
        self.taken.append(report)
        return AgentReply(allocations=[])


async def test_what_waited_is_delivered_in_order_and_says_how_old_it_is(eventually_async):
    service = Flaky()
    agent = Agent("here", SimulatedDevices(1, node="here"), service, idle_s=0.01)
    task = asyncio.create_task(agent.run())
    await eventually_async(lambda: service.asked and len(agent._waiting) > 10)
    service.away = False
    await eventually_async(lambda: len(service.taken) > 10)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    ages = [report.age or 0 for report in service.taken]
    assert [r.at for r in service.taken] == sorted(r.at for r in service.taken)
    assert ages[0] > ages[9] > 0
    # Their own time and their age name the same instant of delivery.
    assert service.taken[0].at + ages[0] <= service.taken[9].at + ages[9] + 1


def report(at: int, utilization: float) -> AgentReport:
    return AgentReport(
        node="here",
        at=at,
        interval=1.0,
        devices=[DeviceSample(device="GPU-0", utilization=utilization, memory_mib=100)],
        samples=[
            UsageSample(
                workload="vision/a", device="GPU-0", utilization=utilization, memory_mib=100
            )
        ],
    )


async def test_the_ledger_has_a_gap_where_reports_were_lost_and_the_true_average(tmp_path):
    now = [float(START)]
    ledger = Ledger(tmp_path / "ledger.sqlite", clock=lambda: now[0])
    # The controller's cycles go on while the node cannot be reached.
    for second in range(0, AWAY_S + 1, 10):
        now[0] = START + second
        ledger.record(now[0], 0.0, HALF)
        await ledger.flush()
    kept = range(AWAY_S - KEPT_REPORTS + 1, AWAY_S + 1)
    for second in kept:
        ledger.record(now[0], 1.0, HALF, report(START + second, 0.5))

    found = await ledger.usage(UsageFilter(workload="vision/a"), START, START + AWAY_S)
    ledger.close()

    assert found.allocated_gpu_hours == pytest.approx(AWAY_S / 3600)
    assert found.used_gpu_hours == pytest.approx(0.5 * KEPT_REPORTS / 3600)
    assert found.utilized_average == pytest.approx(0.5)
    assert found.idle_gpu_hours == 0
    # What came late counts where the database is still open: no zero stands for what was not seen.
    assert {p.utilized for p in found.points} == {None, 0.5}
