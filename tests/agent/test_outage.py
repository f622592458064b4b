"""The service is away for long: what the ledger knows afterwards is a gap, never a zero."""

from __future__ import annotations

import pytest

from runai.hub_service.agent.loop import KEPT_REPORTS
from runai.hub_service.api.reports import AgentReport, DeviceSample, UsageSample
from runai.hub_service.ledger import Held, Ledger, UsageFilter

START = 1_800_000_000
AWAY_S = 1200
HALF = [Held("vision", "ana", "vision/a", "GPU-0", 1000, "here")]


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
