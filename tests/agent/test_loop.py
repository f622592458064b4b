"""The agent's main loop: its measurements, its reports, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from runai.hub_service.agent import agent as agent_module
from runai.hub_service.agent.agent import Agent
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.enforcement.memory_enforcer import MemoryEnforcer
from runai.hub_service.agent.readings import DeviceSource
from runai.hub_service.wire.errors import Forbidden, RunaiError, TooMany, Unavailable
from runai.hub_service.wire.problems import error_from_reply
from runai.hub_service.wire.reports import AgentAllocation, AgentReply, AgentReport

NEVER_S = 1000.0
SOON_S = 0.01
QUEUED_POLLS = 100


@dataclass
class FakeService:
    """A service that accepts reports, or refuses them."""

    allocations: list[AgentAllocation] = field(default_factory=list)
    refusal: RunaiError | None = None
    refusals: list[RunaiError] = field(default_factory=list)
    """The errors for the next reports, in order."""
    reports: list[AgentReport] = field(default_factory=list)
    refused: int = 0

    async def report(self, report: AgentReport) -> AgentReply:
        await asyncio.sleep(0)
        if self.refusal is not None:
            self.refused += 1
            raise self.refusal
        if self.refusals:
            raise self.refusals.pop(0)
        self.reports.append(report)
        return AgentReply(allocations=self.allocations)

    @property
    def reported_pods(self) -> list[list[str] | None]:
        """Return the pods with devices in each accepted report."""
        return [None if r.pods is None else [entry.pod for entry in r.pods] for r in self.reports]


@dataclass
class Kubelet:
    """A kubelet that lists the pods with devices, or is silent."""

    devices_by_pod: dict[str, list[str]] = field(default_factory=dict)
    is_away: bool = False
    query_count: int = 0

    def holders(self) -> dict[str, list[str]]:
        self.query_count += 1
        if self.is_away:
            raise OSError("no kubelet responds")
        return dict(self.devices_by_pod)


class FlakyDevices:
    """Simulated devices with polls that fail on the test's command."""

    def __init__(self) -> None:
        self._real = SimulatedDevices(1, node="here")
        self.devices, self.close = self._real.devices, self._real.close
        self.failing = False
        self.polls = 0
        self.polled_at: list[float] = []

    def poll(self, allocations):
        self.polls += 1
        if self.failing:
            raise RuntimeError("the driver fell over")
        poll = self._real.poll(allocations)
        self.polled_at.append(poll.at)
        return poll


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def source() -> FlakyDevices:
    return FlakyDevices()


@contextlib.asynccontextmanager
async def running_agent(source: DeviceSource, service: FakeService, **settings):
    agent = Agent("here", source, service, **settings)
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_agent_sends_reports_repeatedly(source, service, eventually_async):
    async with running_agent(source, service, idle_s=SOON_S):
        await eventually_async(lambda: len(service.reports) >= 3)

    assert {r.node for r in service.reports} == {"here"}
    assert [r.at for r in service.reports] == sorted({r.at for r in service.reports})


async def test_agent_polls_without_the_idle_wait_once_a_workload_is_allocated(
    source, service, allocate, eventually_async
):
    service.allocations = [allocate("vision/a", source.devices()[0].uuid)]
    async with running_agent(source, service, idle_s=NEVER_S, busy_s=SOON_S):
        await eventually_async(lambda: len(service.reports) >= 3)

    assert [s.workload for s in service.reports[-1].samples] == ["vision/a"]


async def test_agent_reports_usage_of_a_device_beside_an_allocation_without_a_uuid(
    source, service, allocate, eventually_async
):
    """The reply to a report brings the allocations for the next one."""
    uuid = source.devices()[0].uuid
    service.allocations = [allocate("vision/a", uuid, ""), allocate("vision/b", "")]
    async with running_agent(source, service, idle_s=SOON_S, busy_s=SOON_S):
        await eventually_async(lambda: len(service.reports) >= 3)

    assert [(s.workload, s.device) for s in service.reports[-1].samples] == [("vision/a", uuid)]


async def test_agent_reports_queued_during_an_outage_have_their_age(
    source, service, eventually_async
):
    service.refusal = Unavailable("away")
    async with running_agent(source, service, idle_s=SOON_S):
        await eventually_async(lambda: service.refused and source.polls > 10)
        service.refusal = None
        await eventually_async(lambda: len(service.reports) > 10)

    first, tenth = service.reports[0], service.reports[9]
    total = sum(r.interval for r in service.reports)
    span = service.reports[-1].at - first.at + first.interval
    assert total == pytest.approx(span, abs=0.05)  # no interval is lost
    assert [r.at for r in service.reports] == sorted(r.at for r in service.reports)
    assert (first.age or 0) > (tenth.age or 0) > 0
    # `at` and age of a report give the same instant of delivery.
    assert first.at + (first.age or 0) <= tenth.at + (tenth.age or 0) + 1


async def test_full_queue_of_agent_reports_drops_the_oldest(
    source, service, eventually_async, monkeypatch
):
    monkeypatch.setattr(agent_module, "MAX_QUEUED_REPORTS", 3)
    service.refusal = Unavailable("away")
    async with running_agent(source, service, idle_s=SOON_S):
        await eventually_async(lambda: service.refused and source.polls > 10)
        source.failing = True
        service.refusal = None
        await eventually_async(lambda: len(service.reports) == 3)

    assert [r.at for r in service.reports] == source.polled_at[-3:]


async def test_refused_agent_report_is_not_sent_again(source, service, eventually_async):
    service.refusal = Forbidden("This token is no agent's.")
    async with running_agent(source, service, idle_s=NEVER_S):
        await eventually_async(lambda: service.refused == 1)
        service.refusal = None
        await asyncio.sleep(0)

    assert service.reports == []


async def test_agent_reports_the_next_poll_after_a_failed_poll(
    source, service, eventually_async, caplog
):
    source.failing = True
    async with running_agent(source, service, idle_s=SOON_S):
        await eventually_async(lambda: source.polls >= 1)
        source.failing = False
        await eventually_async(lambda: service.reports)

    assert "measuring failed 1 times" in caplog.text


async def test_agent_loop_ends_once_should_run_returns_false(source, service):
    answers = iter([True, True, False])  # asked before each poll
    agent = Agent("here", source, service, idle_s=SOON_S, should_run=lambda: next(answers))

    await agent.run()

    assert source.polls == 2


async def test_agent_sends_reports_while_the_memory_enforcer_fails(
    source, service, eventually_async, caplog
):
    class BrokenEnforcer(MemoryEnforcer):
        def enforce(self, poll, allocations):
            raise RuntimeError("no idea")

    async with running_agent(source, service, idle_s=SOON_S, enforcer=BrokenEnforcer()):
        await eventually_async(lambda: len(service.reports) >= 2)

    assert "could not be enforced" in caplog.text


# -- pods with devices: a state that no waiting or refused report delays -------------------------


@pytest.fixture
def no_retry_delay(monkeypatch) -> None:
    """Let the agent retry the service without a pause."""
    monkeypatch.setattr(agent_module, "MAX_DELAY_S", 0)


async def test_agent_reports_after_an_outage_name_the_latest_pods(
    source, service, no_retry_delay, eventually_async
):
    service.refusal, kubelet = Unavailable("away"), Kubelet({"lab/first": ["GPU-0"]})
    async with running_agent(source, service, idle_s=0, kubelet=kubelet):
        await eventually_async(lambda: kubelet.query_count > QUEUED_POLLS)
        kubelet.devices_by_pod = {"lab/second": ["GPU-0"]}
        before = kubelet.query_count
        # The first query may have begun before the change.
        await eventually_async(lambda: kubelet.query_count > before + 1)
        service.refusal = None
        await eventually_async(lambda: len(service.reports) > QUEUED_POLLS)

    first = service.reports[0]
    assert service.reported_pods[: QUEUED_POLLS + 1] == [["lab/second"]] * (QUEUED_POLLS + 1)
    assert [device.simulated for device in first.inventory] == [True]
    assert first.age is not None
    assert first.pods_age is not None
    assert first.pods_age < first.age
    # Measurements keep their order all the same.
    assert [r.at for r in service.reports] == sorted(r.at for r in service.reports)


async def test_pods_of_a_kubelet_that_stopped_responding_are_not_reported(
    source, service, no_retry_delay, eventually_async
):
    service.refusal, kubelet = Unavailable("away"), Kubelet({"lab/first": ["GPU-0"]})
    async with running_agent(source, service, idle_s=0, kubelet=kubelet) as agent:
        await eventually_async(lambda: agent.tally.polls > 1)
        kubelet.is_away = True
        before = kubelet.query_count
        # The first query may have begun before the change.
        await eventually_async(lambda: kubelet.query_count > before + 1)
        service.refusal = None
        await eventually_async(lambda: service.reports)

    first = service.reports[0]
    assert (first.pods, first.inventory, first.pods_age) == (None, (), None)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(Forbidden("This token is no agent's."), id="forbidden"),
        pytest.param(
            error_from_reply(
                500, b'{"title": "x", "status": 500, "detail": "Oh.", "code": "internal"}'
            ),
            id="internal error",
        ),
    ],
)
async def test_refused_agent_report_does_not_delay_the_next_report(
    refusal, source, service, eventually_async, monkeypatch
):
    monkeypatch.setattr(agent_module, "_retry_delay_s", lambda _failures: NEVER_S)
    service.refusals.append(refusal)
    async with running_agent(source, service, idle_s=0, kubelet=Kubelet({"lab/first": ["GPU-0"]})):
        await eventually_async(lambda: service.reports)

    assert service.refusals == []
    assert service.reported_pods[0] == ["lab/first"]


@pytest.mark.parametrize(
    "error", [Unavailable("away"), TooMany("later")], ids=["unavailable", "too many requests"]
)
async def test_agent_retry_delay_grows_with_failures_to_reach_the_service(
    error, source, service, eventually_async, monkeypatch
):
    failure_counts: list[int] = []

    def record_failures(failures: int) -> float:
        failure_counts.append(failures)
        return 0.0

    monkeypatch.setattr(agent_module, "_retry_delay_s", record_failures)
    service.refusals += [error, error]
    async with running_agent(source, service, idle_s=0):
        await eventually_async(lambda: service.reports)

    assert failure_counts == [1, 2]
