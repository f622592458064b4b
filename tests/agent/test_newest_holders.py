"""Who has which devices is a state: no report that waits, and none that is refused, delays it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from runai.hub_service.agent import loop
from runai.hub_service.agent.loop import Agent
from runai.hub_service.agent.simulated import SimulatedDevices
from runai.hub_service.api.problems import error_from_reply
from runai.hub_service.api.reports import AgentReply, AgentReport
from runai.hub_service.errors import Forbidden, RunaiError, TooMany, Unavailable

POLLS = 100


@dataclass
class Kubelet:
    """Says who has devices, or nothing."""

    has: dict[str, list[str]] = field(default_factory=dict)
    is_away: bool = False
    asked: int = 0

    def holders(self) -> dict[str, list[str]]:
        self.asked += 1
        if self.is_away:
            raise OSError("nobody is there")
        return dict(self.has)


@dataclass
class Service:
    """Answers the next reports with errors, and takes those after them."""

    refusals: list[RunaiError] = field(default_factory=list)
    away: RunaiError | None = None
    reports: list[AgentReport] = field(default_factory=list)

    async def report(self, report: AgentReport) -> AgentReply:
        await asyncio.sleep(0)
        if self.away is not None:
            raise self.away
        if self.refusals:
            raise self.refusals.pop(0)
        self.reports.append(report)
        return AgentReply(allocations=[])

    @property
    def told(self) -> list[list[str] | None]:
        """Which pods have devices, as each report that was taken says."""
        return [
            None if report.pods is None else [of.pod for of in report.pods]
            for report in self.reports
        ]


@contextlib.asynccontextmanager
async def running(service: Service, kubelet: Kubelet) -> AsyncIterator[Agent]:
    source = SimulatedDevices(1, node="here")
    agent = Agent("here", source, service, idle_s=0, busy_s=0, kubelet=kubelet)
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """Have the service asked again without a pause."""
    monkeypatch.setattr(loop, "MAX_DELAY_S", 0)


async def test_the_first_report_after_an_outage_names_who_came_last(eventually_async):
    service, kubelet = Service(away=Unavailable("away")), Kubelet({"lab/first": ["GPU-0"]})
    async with running(service, kubelet):
        await eventually_async(lambda: kubelet.asked > POLLS)
        kubelet.has = {"lab/second": ["GPU-0"]}
        before = kubelet.asked
        await eventually_async(lambda: kubelet.asked > before + 1)
        service.away = None
        await eventually_async(lambda: len(service.reports) > POLLS)

    first = service.reports[0]
    assert service.told[: POLLS + 1] == [["lab/second"]] * (POLLS + 1)
    assert [device.simulated for device in first.inventory] == [True]
    assert first.age is not None
    assert first.pods_age is not None
    assert first.pods_age < first.age
    # What was measured goes in order all the same.
    assert [r.at for r in service.reports] == sorted(r.at for r in service.reports)


async def test_a_kubelet_that_is_silent_by_now_is_not_quoted(eventually_async):
    service, kubelet = Service(away=Unavailable("away")), Kubelet({"lab/first": ["GPU-0"]})
    async with running(service, kubelet) as agent:
        await eventually_async(lambda: agent.tally.polls > 1)
        kubelet.is_away = True
        before = kubelet.asked
        await eventually_async(lambda: kubelet.asked > before + 1)
        service.away = None
        await eventually_async(lambda: service.reports)

    first = service.reports[0]
    assert (first.pods, first.inventory, first.pods_age) == (None, (), None)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(Forbidden("This token is no agent's."), id="refused"),
        pytest.param(
            error_from_reply(
                500, b'{"title": "x", "status": 500, "detail": "Oh.", "code": "internal"}'
            ),
            id="failed",
        ),
    ],
)
async def test_a_report_that_is_refused_does_not_hold_up_the_next(
    refusal, eventually_async, monkeypatch
):
    monkeypatch.setattr(loop, "_delay", lambda _failures: 1000.0)
    service, kubelet = Service(refusals=[refusal]), Kubelet({"lab/first": ["GPU-0"]})
    async with running(service, kubelet):
        await eventually_async(lambda: service.reports)

    assert service.refusals == []
    assert service.told[0] == ["lab/first"]


@pytest.mark.parametrize("away", [Unavailable("away"), TooMany("later")], ids=["away", "busy"])
async def test_whoever_is_away_is_given_time(away, eventually_async, monkeypatch):
    paused: list[int] = []

    def pause(failures: int) -> float:
        paused.append(failures)
        return 0.0

    monkeypatch.setattr(loop, "_delay", pause)
    service, kubelet = Service(refusals=[away, away]), Kubelet()
    async with running(service, kubelet):
        await eventually_async(lambda: service.reports)

    assert paused == [1, 2]
