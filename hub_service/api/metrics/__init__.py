"""Prometheus metrics of the service: counters of events, gauges of the current state.

Names follow Prometheus' conventions; `original_names` adds those of Run:ai's documentation.
"""

from runai.hub_service.api.metrics.exposition import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "Metrics"]
