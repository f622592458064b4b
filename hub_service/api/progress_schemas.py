"""How far a job is, as it reports itself: part of the wire contract.

Known by `schemas`; made by `progress_views`.
"""

from runai.hub_service.api.wire import Wire


class ProgressView(Wire):
    """How far a job is, as it reports by `runai.reporter`."""

    done: float | None = None
    """Its epochs that are done, 0..1; None: it told no epochs."""
    text: str
    """ "3 of 10 epochs · loss 0.0123 · accuracy 0.98"; to who may not read it its epochs alone."""


class MetricsView(Wire):
    """All that a job reports of itself."""

    metrics: dict[str, float | None]
    """None: it is not a finite number."""
    parameters: dict[str, str]
    text: str
    """ "loss 0.0123, accuracy 0.98, optimizer_name Adam"."""
