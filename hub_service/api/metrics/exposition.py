"""Render counters and the current state in Prometheus' text format."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from runai.hub_service.api.metrics.counters import ServiceCounters
from runai.hub_service.api.metrics.gauges import current_state
from runai.hub_service.api.metrics.original_names import original
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.controller.controller import Cycle
from runai.hub_service.controller.decision_worker import DecisionWorker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Metrics of the service, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = ServiceCounters(self._registry)

    def count(self, cycle: Cycle) -> None:
        """Count a cycle and its decisions."""
        self._counters.count(cycle)

    def render(
        self,
        viewer: Viewer,
        version: str,
        decision_worker: DecisionWorker,
        unsaved_pauses: Mapping[str, int],
    ) -> bytes:
        """Return all metrics that the viewer may read, in Prometheus' text format."""
        scrape_registry = CollectorRegistry(auto_describe=False)
        scrape_registry.register(_StateCollector(viewer, version, decision_worker, unsaved_pauses))
        return generate_latest(self._registry) + generate_latest(scrape_registry)


class _StateCollector(Collector):
    """Collector of the current state for one scrape."""

    def __init__(
        self,
        viewer: Viewer,
        version: str,
        decision_worker: DecisionWorker,
        unsaved_pauses: Mapping[str, int],
    ) -> None:
        self._viewer, self._version, self._decision_worker = viewer, version, decision_worker
        self._unsaved_pauses = unsaved_pauses

    def collect(self) -> Iterator[Metric]:
        yield from current_state(self._viewer, self._version)
        yield CounterMetricFamily(
            "runai_decision_worker_starts",
            "Starts of the decision worker: one, and one for each that was replaced.",
            value=self._decision_worker.started,
        )
        yield GaugeMetricFamily(
            "runai_decision_worker_memory_bytes",
            "Resident memory of the decision worker.",
            value=self._decision_worker.memory(),
        )
        unsaved = CounterMetricFamily(
            "runai_unsaved_pauses",
            "Pauses that left nothing new in the checkpoint directory.",
            labels=["project"],
        )
        for project in self._viewer.read_model.projects:
            unsaved.add_metric([project], self._unsaved_pauses.get(project, 0))
        yield unsaved
        yield from original(self._viewer)
