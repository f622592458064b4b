"""What Prometheus may read of the service: what happened (counters) and what is (when it asks).

`Metrics` is all that others need: the composition root feeds it cycles, the API has it written for
whoever asks. Names follow Prometheus' conventions; the original's stand beside them (`original`).
"""

from runai.hub_service.api.metrics.exposition import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "Metrics"]
