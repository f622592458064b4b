"""A report is integrated at once, with the same result as its samples one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.ledger import DeviceAllocation
from runai.hub_service.ledger.integration import Integration
from runai.hub_service.ledger.totals import Scope, Series
from runai.hub_service.wire.reports import AgentReport

START = 1_700_000_007.0

ALLOCATIONS = [
    DeviceAllocation("vision", "ana", "vision/a", "GPU-0", 500, "n1"),
    DeviceAllocation("vision", "ana", "vision/b", "GPU-0", 250, "n1"),
    DeviceAllocation("vision", "bo", "vision/c", "GPU-1", 1000, "n1"),
    DeviceAllocation("nlp", "bo", "nlp/d", "GPU-2", 1000, "n1"),
    DeviceAllocation("nlp", "bo", "nlp/d", "GPU-3", 250, "n1"),
    DeviceAllocation("nlp", "ana", "nlp/e", "GPU-3", 750, ""),
]
DEVICES = [*{allocation.device: None for allocation in ALLOCATIONS}, "GPU-4"]

allocation_lists = st.lists(st.sampled_from(ALLOCATIONS), max_size=8)
utilizations = st.none() | st.sampled_from([0.0, 0.005, 0.1, 0.5, 1.0])


Figures = tuple[float, ...]
"""Measured, used and idle seconds."""


@dataclass(frozen=True)
class ReportCase:
    """The allocations over time, and a report about some of that time."""

    allocations: Sequence[tuple[float, Sequence[DeviceAllocation]]]
    now: float
    interval: float
    samples: Sequence[tuple[DeviceAllocation, float | None]]
    devices: Sequence[tuple[str, float | None]]

    def report(
        self,
        samples: Sequence[tuple[DeviceAllocation, float | None]] = (),
        devices: Sequence[tuple[str, float | None]] = (),
    ) -> AgentReport:
        return AgentReport.model_validate(
            {
                "node": "n1",
                "at": START + self.now,
                "interval": self.interval,
                "samples": [
                    {"workload": h.workload, "device": h.device, "utilization": u, "memory_mib": 1}
                    for h, u in samples
                ],
                "devices": [
                    {"device": device, "utilization": u, "memory_mib": 1} for device, u in devices
                ],
            }
        )


report_cases = st.builds(
    ReportCase,
    allocations=st.lists(st.tuples(st.floats(0, 4), allocation_lists), min_size=1, max_size=4).map(
        lambda timed_allocations: sorted(timed_allocations, key=lambda timed: timed[0])
    ),
    now=st.floats(4, 6),
    interval=st.floats(0.1, 5),
    samples=st.lists(st.tuples(st.sampled_from(ALLOCATIONS), utilizations), max_size=8),
    devices=st.lists(st.tuples(st.sampled_from(DEVICES), utilizations), max_size=6),
)


@given(case=report_cases)
def test_usage_of_a_whole_report_equals_the_sum_of_its_samples(case):
    together = contributions(case, case.report(case.samples, case.devices))
    one_by_one = [case.report(samples=[sample]) for sample in case.samples]
    one_by_one += [case.report(devices=[device_sample]) for device_sample in case.devices]
    added: dict[tuple[Scope, int], Figures] = {}
    for report in [case.report(), *one_by_one]:
        for scope_and_window, figures in contributions(case, report).items():
            before = added.get(scope_and_window, (0.0, 0.0, 0.0))
            added[scope_and_window] = tuple(map(sum, zip(before, figures, strict=True)))

    assert together.keys() == added.keys()
    # A short assertion: pytest's diff of the whole would be slow for each failing example.
    differing_scopes = [at for at in added if together[at] != pytest.approx(added[at], abs=1e-9)]
    assert differing_scopes == []


def contributions(case: ReportCase, report: AgentReport) -> dict[tuple[Scope, int], Figures]:
    """Return a report's contribution to each series in each window."""
    series: dict[Scope, Series] = {}
    integration = Integration(lambda scope: series.setdefault(scope, Series(scope, START)))
    for at, allocations in case.allocations:
        integration.set_allocations(START + at, allocations)
    integration.advance(START + case.now)
    integration.add_report(report)
    return {
        (series.scope, window): (totals.measured_s, totals.used_s, totals.idle_s)
        for series, amounts in integration.collect().items()
        for window, totals in amounts.items()
    }


def test_failed_ledger_write_requeues_only_the_newest_windows():
    series: dict[Scope, Series] = {}
    integration = Integration(lambda scope: series.setdefault(scope, Series(scope, 0.0)))
    integration.set_allocations(0.0, ALLOCATIONS[:1])
    integration.advance(35.0)

    integration.requeue(integration.collect(), max_windows=2)
    integration.advance(38.0)

    again = integration.collect()[series[Scope("all")]]
    assert {window: amounts.held_s for window, amounts in again.items()} == {30: 10.0, 40: 8.0}
