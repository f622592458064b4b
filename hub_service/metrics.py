"""What Prometheus may read: cycles as they happen, workloads and GPUs as they are when it asks.

Knows names and labels of metrics. The composition root feeds it cycles, the API a `World`.
"""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from runai.hub_service.api.views import World
from runai.hub_service.clusters.records import WorkloadState
from runai.hub_service.controller import Cycle

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The service's counters and gauges, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._gauges: list[Gauge] = []
        self._cycle_seconds = Histogram(
            "runai_cycle_seconds",
            "Time from observing to having applied.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=self._registry,
        )
        self._decisions = Counter(
            "runai_decisions", "Decisions by kind.", ["kind"], registry=self._registry
        )
        self._refused = Counter(
            "runai_decisions_refused",
            "Decisions that could not be carried out.",
            registry=self._registry,
        )
        self._workloads = self._gauge("runai_workloads", "Workloads.", "project", "state")
        self._allocated = self._gauge("runai_gpus_allocated", "GPUs that are granted.", "project")
        self._utilized = self._gauge("runai_gpus_utilized", "GPUs that are kept busy.", "project")
        self._quota = self._gauge("runai_gpus_quota", "GPUs that are guaranteed.", "project")
        self._capacity = self._gauge("runai_gpus", "GPUs in the cluster.", "node")

    def count(self, cycle: Cycle) -> None:
        """Count a cycle and its decisions."""
        self._cycle_seconds.observe(cycle.seconds)
        for kind, number in Tally(d.kind for d in cycle.plan.decisions).items():
            self._decisions.labels(kind).inc(number)
        self._refused.inc(len(cycle.refused))

    def render(self, world: World) -> bytes:
        """Return everything in Prometheus' text format."""
        for gauge in self._gauges:
            gauge.clear()
        for node, devices in world.devices.items():
            self._capacity.labels(node).set(len(devices))
        for name, project in world.projects.items():
            own = [r for r in world.workloads if r.spec.project == name]
            states = Tally(record.state for record in own)
            for state in WorkloadState:
                self._workloads.labels(name, state).set(states[state])
            measured = [m for r in own if r.allocated and (m := world.meter.current(r.id))]
            self._allocated.labels(name).set(sum(r.allocated for r in own) / 1000)
            self._utilized.labels(name).set(sum(gpus for gpus, _ in measured))
            quota = project.spec.quota
            self._quota.labels(name).set(float("inf") if quota is None else quota / 1000)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, labels, registry=self._registry)
        self._gauges.append(gauge)
        return gauge
