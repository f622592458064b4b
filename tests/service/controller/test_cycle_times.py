"""The controller's cycle times, in virtual time: soon after a change, and every ten seconds.

The loop's clock jumps to the next timer, so ten seconds take no time and every figure is exact.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.controller.controller import (
    MAX_CYCLE_INTERVAL_S,
    MAX_PAUSE_S,
    SETTLE_S,
    Controller,
    Cycle,
)
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import Plan, Policy, Snapshot, Wait, decide
from runai.hub_service.scheduler.model.quantity import MilliGpu


class JumpingSelector(selectors.SelectSelector):
    """A selector that sets the clock to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


@pytest.fixture
def cluster(loop: VirtualTimeLoop) -> SimulatedCluster:
    cluster = simulated_cluster({"lab": SimulatedDevices(2, node="lab").devices()}, clock=loop.time)
    loop.run_until_complete(
        cluster.put_project(ProjectSpec("vision", quota=MilliGpu(2000), members=("ana",)))
    )
    return cluster


def job(name: str, gpus: int = 1) -> WorkloadSpec:
    return WorkloadSpec("vision", name, "ana", "job", ("true",), gpus=MilliGpu(1000 * gpus))


class InlineScheduler:
    """A scheduler in this process."""

    def __init__(self, decide: Callable[[Snapshot], Plan] = decide) -> None:
        self._decide = decide

    async def decide(self, snapshot: Snapshot) -> Plan:
        return self._decide(snapshot)


class TimedController:
    """A running controller and the times at which it finished each cycle."""

    def __init__(
        self, cluster: SimulatedCluster, decide: Callable[[Snapshot], Plan] = decide
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.cycle_times: list[float] = []
        self.controller = Controller(
            cluster, InlineScheduler(decide), on_cycle=self.record_cycle, clock=self.loop.time
        )

    def record_cycle(self, _cycle: Cycle) -> None:
        self.cycle_times.append(round(self.loop.time(), 3))

    async def __aenter__(self) -> Self:
        self.task = asyncio.ensure_future(self.controller.run())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_controller_cycles_at_start_and_every_ten_seconds(loop, cluster):
    async def scenario() -> list[float]:
        async with TimedController(cluster) as timed:
            await asyncio.sleep(25)
            return timed.cycle_times

    assert loop.run_until_complete(scenario()) == [
        0.0,
        MAX_CYCLE_INTERVAL_S,
        2 * MAX_CYCLE_INTERVAL_S,
    ]


def test_submitted_job_runs_within_a_tenth_of_a_second(loop, cluster):
    async def scenario() -> tuple[float, str]:
        async with TimedController(cluster) as timed:
            await asyncio.sleep(5)
            await cluster.submit([job("exp1")])
            workload = await cluster.workload("vision/exp1")
            while workload.state != "running":
                workload = await cluster.wait(workload.id, workload)
            assert timed.cycle_times[-1] == round(loop.time(), 3) or len(timed.cycle_times) == 1
            return loop.time() - 5, workload.state

    delay_s, state = loop.run_until_complete(scenario())
    assert state == "running"
    assert delay_s <= 0.1


def test_burst_of_submissions_causes_two_scheduler_cycles(loop, cluster):
    async def scenario() -> list[float]:
        async with TimedController(cluster) as timed:
            await asyncio.sleep(5)
            for number in range(20):
                await cluster.submit([job(f"exp{number}")])
            await asyncio.sleep(1)
            return [at for at in timed.cycle_times if at >= 5]

    # A cycle begins 20 ms (SETTLE_S) after a change; the second sees what the first has started.
    assert loop.run_until_complete(scenario()) == [5.02, 5.04]


def test_scheduler_plan_without_changes_causes_no_further_cycle(loop, cluster):
    async def scenario() -> int:
        async with TimedController(cluster) as timed:
            await cluster.submit([job("exp1"), job("exp2"), job("waits")])
            await asyncio.sleep(9)
            return len(timed.cycle_times)

    assert loop.run_until_complete(scenario()) <= 2


def test_waiting_job_starts_within_a_tenth_of_a_second_after_a_job_ends(loop, cluster):
    async def scenario() -> tuple[str, str, float]:
        async with TimedController(cluster):
            await cluster.submit([job("first", gpus=2), job("second", gpus=2)])
            await asyncio.sleep(3)
            before = (await cluster.workload("vision/second")).state
            ended = loop.time()
            cluster.executor.complete("vision/first")
            workload = await cluster.workload("vision/second")
            while workload.state != "running":
                workload = await cluster.wait(workload.id, workload)
            return before, workload.state, loop.time() - ended

    before, after, delay_s = loop.run_until_complete(scenario())
    assert (before, after) == ("queued", "running")
    assert delay_s <= 0.1


def test_failed_scheduler_cycles_are_retried_with_doubling_delays(loop, cluster, caplog):
    attempts: list[float] = []

    def decide_after_four_failures(snapshot: Snapshot) -> Plan:
        attempts.append(round(loop.time(), 3))
        if len(attempts) <= 4:
            message = "a mistake of ours"
            raise RuntimeError(message)
        return decide(snapshot)

    async def scenario() -> str:
        async with TimedController(cluster, decide_after_four_failures):
            await cluster.submit([job("exp1")])
            await asyncio.sleep(8)
            return str((await cluster.workload("vision/exp1")).state)

    with caplog.at_level(logging.ERROR, "runai.controller"):
        state = loop.run_until_complete(scenario())

    # The delays double from 0.2 s on.
    assert attempts[:5] == [0.0, 0.2, 0.6, 1.4, 3.0]
    assert state == "running"
    assert caplog.text.count("cycle failed, incident ") == 4


def test_waiter_for_a_cluster_change_wakes_after_the_cycle_that_applied_it(loop, cluster):
    async def scenario() -> tuple[int, str]:
        async with TimedController(cluster) as timed:
            changes = timed.controller.changes
            version = await changes.newer_than(0)
            await cluster.submit([job("exp1")])
            return await changes.newer_than(version) - version, (
                await cluster.workload("vision/exp1")
            ).state

    assert loop.run_until_complete(scenario()) == (1, "running")


def test_submission_during_a_scheduler_cycle_starts_the_next_cycle_at_once(loop, cluster):
    """The next cycle starts at once and sees a job submitted between observing and applying."""

    async def scenario() -> list[float]:
        async with TimedController(cluster) as timed:
            apply = cluster.apply

            async def apply_with_submission(plan: Plan, **options: Any) -> Any:
                await cluster.submit([job("meanwhile")])
                cluster.apply = apply
                return await apply(plan, **options)

            cluster.apply = apply_with_submission
            await cluster.submit([job("exp1")])
            await asyncio.sleep(1)
            states = {w.id: w.state for w in await cluster.workloads()}
            assert states == {"vision/exp1": "running", "vision/meanwhile": "running"}
            return timed.cycle_times

    assert loop.run_until_complete(scenario())[:2] == [0.0, 0.02]


def decide_taking(loop: VirtualTimeLoop, seconds: float) -> Callable[[Snapshot], Plan]:
    """Return a scheduler that takes as long as for thousands of workloads."""

    def decide_slowly(snapshot: Snapshot) -> Plan:
        loop.jumping.now += seconds
        return decide(snapshot)

    return decide_slowly


@pytest.mark.parametrize(
    ("cycle_s", "pause_s"),
    [
        pytest.param(0.0, SETTLE_S, id="short cycle"),
        pytest.param(0.05, 0.05, id="pause as long as the cycle"),
        pytest.param(1.0, MAX_PAUSE_S, id="maximum pause"),
    ],
)
@pytest.mark.parametrize("change", ["deleted", "submitted"])
def test_controller_pauses_after_a_long_cycle(loop, cluster, cycle_s, pause_s, change):
    async def scenario() -> float:
        async with TimedController(cluster, decide_taking(loop, cycle_s)) as timed:
            await cluster.submit([job(f"exp{n}") for n in range(4)])
            await asyncio.sleep(5)
            await cluster.submit([job("one-more")])
            while (ended := timed.cycle_times[-1]) < 5:
                await timed.controller.changes.newer_than(timed.controller.changes.version)
            if change == "deleted":
                await cluster.delete("vision/exp3", by="ana")
            else:
                await cluster.submit([job("another")])
            await timed.controller.changes.newer_than(timed.controller.changes.version)
            return float(timed.cycle_times[-1] - ended - cycle_s)

    assert -0.001 <= loop.run_until_complete(scenario()) - pause_s <= SETTLE_S + 0.001


def test_deletion_of_running_job_starts_next_job_within_two_cycles(loop, cluster):
    cycle_s = 0.2

    async def scenario() -> float:
        async with TimedController(cluster, decide_taking(loop, cycle_s)):
            await cluster.submit([job("first", gpus=2), job("second", gpus=2)])
            await asyncio.sleep(5)
            began = loop.time()
            await cluster.delete("vision/first", by="ana")
            cluster.executor.complete("vision/first")
            workload = await cluster.workload("vision/second")
            while workload.state != "running":
                workload = await cluster.wait(workload.id, workload)
            return float(loop.time() - began)

    assert loop.run_until_complete(scenario()) <= 2 * (cycle_s + MAX_PAUSE_S)


def test_scheduler_cycle_computes_no_long_explanations(loop, cluster):
    spec = WorkloadSpec("vision", "big", "ana", "job", ("true",), gpus=MilliGpu(9000))
    loop.run_until_complete(cluster.submit([spec]))
    controller = Controller(
        cluster, InlineScheduler(), policy=Policy(explain="full", packing="spread")
    )

    cycle = loop.run_until_complete(controller.cycle())

    (wait,) = cycle.plan.decisions
    assert isinstance(wait, Wait)
    assert (wait.reason.code, wait.explanation) == ("no_such_node", None)
    assert cycle.snapshot.policy == Policy(explain="short", packing="spread")
