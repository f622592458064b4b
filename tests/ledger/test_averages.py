"""Averages against exact integrals, over generated traces of everything that can happen.

A trace is a list of steps during which allocation and load do not change. Steps may lack their
report (a gap), have it twice or late; the service may be stopped or die between two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runai.hub_service.ledger import DeviceAllocation, Ledger, Totals, UsageFilter
from runai.hub_service.wire.reports import AgentReport

START = 1_700_000_000.0
TICK_S = 0.25

SHARES = [
    DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500, "n1"),
    DeviceAllocation("vision", "ana", "vision/b", "GPU-0", 250, "n1"),
    DeviceAllocation("vision", "bo", "vision/c", "GPU-1", 1000, "n1"),
    DeviceAllocation("nlp", "bo", "nlp/d", "GPU-2", 1000, "n1"),
    DeviceAllocation("nlp", "bo", "nlp/d", "GPU-3", 1000, "n2"),
    DeviceAllocation("ops", "eve", "ops/e", "GPU-4", 1000, "n2"),
]
WORKLOADS = {allocation.workload for allocation in SHARES}
FILTERS = {
    "all": UsageFilter(),
    "project vision": UsageFilter(project="vision"),
    "user bo": UsageFilter(user="bo"),
    "bo in vision": UsageFilter(project="vision", user="bo"),
    "node n1": UsageFilter(node="n1"),
    "workload vision/a": UsageFilter(workload="vision/a"),
    "workload nlp/d": UsageFilter(workload="nlp/d"),
}

Delivery = Literal["once", "twice", "late", "failed", "lost"]


@dataclass(frozen=True)
class Step:
    ticks: int
    allocated: tuple[int, ...]
    busy: tuple[float, ...]
    delivery: Delivery
    then: Literal["go on", "stop", "crash"]
    away_ticks: int


traces = st.lists(
    st.builds(
        Step,
        ticks=st.integers(1, 24),
        allocated=st.sets(st.integers(0, len(SHARES) - 1)).map(
            lambda indexes: tuple(sorted(indexes))
        ),
        busy=st.tuples(*[st.sampled_from([0.0, 0.005, 0.1, 0.5, 1.0])] * len(SHARES)),
        delivery=st.sampled_from(["once"] * 6 + ["twice", "late", "failed", "lost"]),
        then=st.sampled_from(["go on"] * 8 + ["stop", "crash"]),
        away_ticks=st.integers(0, 120),
    ),
    min_size=1,
    max_size=40,
)


@dataclass(frozen=True)
class Piece:
    """The true state during a stretch of time that the ledger records."""

    start: float
    end: float
    allocated: tuple[int, ...]
    busy: tuple[float, ...]
    measured: bool


@dataclass
class Sums:
    """Exact integrals over some pieces."""

    watched: float = 0.0
    allocation_s: float = 0.0
    measured_allocation_s: float = 0.0
    measured: float = 0.0
    allocated: float = 0.0
    used: float = 0.0
    idle: float = 0.0


def matches(usage_filter: UsageFilter, allocation: DeviceAllocation) -> bool:
    criteria = {
        "workload": usage_filter.workload,
        "project": usage_filter.project,
        "user": usage_filter.user,
        "node": usage_filter.node,
    }
    return all(value in {None, getattr(allocation, name)} for name, value in criteria.items())


def integrate(pieces: list[Piece], usage_filter: UsageFilter) -> Sums:
    sums = Sums()
    for piece in pieces:
        length = max(0.0, piece.end - piece.start)
        matching = [n for n in piece.allocated if matches(usage_filter, SHARES[n])]
        sums.watched += length
        sums.allocation_s += length * bool(matching)
        sums.allocated += length * sum(SHARES[n].milli for n in matching) / 1000
        if piece.measured or not matching:
            sums.measured += length
        if piece.measured:
            sums.measured_allocation_s += length * bool(matching)
            sums.used += length * sum(piece.busy[n] for n in matching)
            sums.idle += length * sum(
                SHARES[n].milli / 1000 for n in matching if piece.busy[n] < 0.01
            )
    return sums


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


class Replay:
    """A ledger that plays a trace, and the true pieces of the trace."""

    def __init__(self, database: str | Path, make_report) -> None:
        self.clock = Clock()
        self.pieces: list[Piece] = []
        self._database = database
        self._make_report = make_report
        self._open()

    def _open(self) -> None:
        self.ledger = Ledger(self._database, clock=self.clock)
        self._run: list[Piece] = []
        self._late_report: AgentReport | None = None

    async def play(self, step: Step) -> None:
        allocations = [SHARES[n] for n in step.allocated]
        start = self.clock.now
        self.ledger.record(start, 0, allocations)
        self.clock.now += step.ticks * TICK_S
        length = self.clock.now - start
        busy = {(SHARES[n].workload, SHARES[n].device): step.busy[n] for n in step.allocated}
        utilization = {} if step.delivery == "failed" else busy
        report = self._make_report(self.clock.now, length, utilization)
        if self._late_report is not None and step.then != "crash":
            self.ledger.record(
                self.clock.now, self._late_report.interval, allocations, self._late_report
            )
            self._late_report = None
        if step.delivery == "late" and step.then != "crash":
            self._late_report = report
        elif step.delivery != "lost":
            for _ in range(2 if step.delivery == "twice" else 1):
                self.ledger.record(self.clock.now, length, allocations, report)
        else:
            self.ledger.record(self.clock.now, length, allocations)
        measured = step.delivery not in {"failed", "lost"}
        self._run.append(Piece(start, self.clock.now, step.allocated, step.busy, measured))
        if step.then != "crash":
            await self.ledger.flush()
        if step.then != "go on":
            self.restart(step)

    def restart(self, step: Step) -> None:
        if step.then == "stop":
            self.ledger.close()
        else:
            self._run.pop()  # since the last flush
            self.ledger._store.close()
        if self._late_report is not None and self._run:
            # It never arrived: the agent went with the service.
            self._run[-1] = replace(self._run[-1], measured=False)
        self.pieces += self._run
        self.clock.now += step.away_ticks * TICK_S
        self._open()

    async def finish(self) -> list[Piece]:
        """End on a whole window, so that the answer covers exactly the queried range."""
        if self._late_report is not None:
            self.ledger.record(self.clock.now, self._late_report.interval, [], self._late_report)
        end = -(-self.clock.now // 10) * 10 + 10
        self.ledger.record(self.clock.now, 0, [])
        self._run.append(Piece(self.clock.now, end, (), (), measured=False))
        self.clock.now = end
        self.ledger.record(end, 0, [])
        return self.pieces + self._run


def ratio(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 1e-6 else None


def expected(usage_filter: UsageFilter, sums: Sums) -> Mapping[str, float | None]:
    is_workload = usage_filter.workload is not None
    return {
        "allocated_average": ratio(
            sums.allocated, sums.allocation_s if is_workload else sums.watched
        ),
        "utilized_average": ratio(
            sums.used, sums.measured_allocation_s if is_workload else sums.measured
        ),
        "allocated_gpu_hours": sums.allocated / 3600,
        "used_gpu_hours": sums.used / 3600,
        "idle_gpu_hours": sums.idle / 3600,
    }


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trace=traces)
def test_usage_averages_equal_the_exact_integrals_for_random_traces(trace, new_database, report):
    asyncio.run(play_and_compare(trace, new_database(), report))


async def play_and_compare(trace, database, report):
    replay = Replay(database, report)
    totals: dict[str, Totals] = {}
    for step in trace:
        await replay.play(step)
        # A crash may lose unwritten amounts; otherwise totals never shrink.
        earlier_totals = {} if step.then == "crash" else totals
        totals = {workload: replay.ledger.totals(workload) for workload in WORKLOADS}
        for workload, earlier in earlier_totals.items():
            added = map(sub, totals[workload], earlier)
            assert min(added) >= -1e-9, workload
    pieces = await replay.finish()
    for name, usage_filter in FILTERS.items():
        series = await replay.ledger.usage(usage_filter, START, replay.clock.now)
        answer = expected(usage_filter, integrate(pieces, usage_filter))
        averages = {field: getattr(series, field) for field in answer}

        # 0.1 points of a GPU is 0.001; sums of seconds are as exact as floats.
        assert averages == pytest.approx(dict(answer), abs=1e-6), name
        assert (series.since, series.until) == (START, replay.clock.now)
    replay.ledger.close()
