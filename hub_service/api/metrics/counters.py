"""Counters and histograms of cycles, decisions and queue waits.

Labels are projects and kinds, never text that a user typed.
"""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Histogram

from runai.hub_service.controller.controller import Cycle
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Resize,
    Start,
    Stop,
    Workload,
)

CYCLE_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
WAIT_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)


class ServiceCounters:
    """Counts since the service started."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the counters and histograms in this registry."""
        self._cycle_seconds = Histogram(
            "runai_cycle_seconds",
            "Time from observing to having applied.",
            buckets=CYCLE_BUCKETS,
            registry=registry,
        )
        self._phase_seconds = Histogram(
            "runai_cycle_phase_seconds",
            "Time that each part of a cycle took.",
            ["phase"],
            buckets=CYCLE_BUCKETS,
            registry=registry,
        )
        self._decisions = Counter(
            "runai_decisions", "Decisions by kind.", ["kind"], registry=registry
        )
        self._stops = Counter(
            "runai_stops",
            "Stops, moves and resizes of workers, by the rule that they follow.",
            ["kind", "rule"],
            registry=registry,
        )
        self._refused = Counter(
            "runai_decisions_refused",
            "Decisions that could not be carried out.",
            registry=registry,
        )
        self._waits = Histogram(
            "runai_queue_wait_seconds",
            "Time from a workload's submission to its first start.",
            ["project", "kind"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )

    def count(self, cycle: Cycle) -> None:
        """Count a cycle, its decisions, and the waits that it ended."""
        self._cycle_seconds.observe(cycle.seconds)
        for phase, seconds in cycle.phases.items():
            self._phase_seconds.labels(phase).observe(seconds)
        # A cycle may have thousands of waits: one call per kind.
        decided: Tally[type[Decision]] = Tally(map(type, cycle.plan.decisions))
        for decision, number in decided.items():
            self._decisions.labels(decision.kind).inc(number)
        by_rule = Tally(
            (d.kind, d.reason.rule)
            for d in cycle.plan.decisions
            if isinstance(d, Stop | Move | Resize)
        )
        for (kind, rule), number in by_rule.items():
            self._stops.labels(kind, rule).inc(number)
        self._refused.inc(len(cycle.refused))
        refused = {refusal.workload for refusal in cycle.refused}
        if not decided[Start]:
            return
        started = {d.workload for d in cycle.plan.decisions if isinstance(d, Start)} - refused
        for workload in cycle.snapshot.workloads if started else ():
            if workload.name in started and _is_new(workload):
                waited = max(0, cycle.snapshot.now - workload.submitted)
                self._waits.labels(workload.project, workload.kind).observe(waited)


def _is_new(workload: Workload) -> bool:
    """Return True for a first start; resumes and growing gangs end no queue wait."""
    return not workload.pauses and all(worker.node is None for worker in workload.workers)
