"""View of a job's reported progress, in numbers and in words.

Pure. One wording for the command line, the panel and the page.
"""

import math

from runai.hub_service.model.progress import Progress
from runai.hub_service.wire.schemas import MetricsView, ProgressView

_OF_PROGRESS = ("epoch", "overall_epochs")
MAX_METRICS_IN_LINE = 4
"""Metrics that fit into a line; `describe` and the API have all."""


def progress_view(progress: Progress | None, *, reads: bool = True) -> ProgressView | None:
    """Return a job's progress and its first metrics; None if it reported nothing.

    `reads`: the caller may read the workload. Others get no metrics, since the program chose their
    names.

    >>> progress_view(Progress({"loss": 0.01234567, "epoch": 3, "overall_epochs": 10})).text
    '3 of 10 epochs · loss 0.01235'
    """
    if progress is None:
        return None
    words, done = [], None
    if progress.epochs is not None:
        trained, of = progress.epochs
        done = trained / of
        words.append(f"{trained:g} of {of:g} epoch{'s' * (of != 1)}")
    elif "epoch" in progress.metrics:
        words.append(f"epoch {progress.metrics['epoch']:g}")
    if reads:
        words += [
            f"{name} {value:.4g}"
            for name, value in sorted(progress.metrics.items(), key=_importance)
            if name not in _OF_PROGRESS
        ][:MAX_METRICS_IN_LINE]
    return ProgressView(done=done, text=" · ".join(words)) if words else None


def _importance(metric: tuple[str, float]) -> bool:
    """Return a sort key: losses and accuracies before parameters, such as a number of layers."""
    return not any(word in metric[0] for word in ("loss", "acc"))


def metrics_view(progress: Progress | None) -> MetricsView | None:
    """Return everything that a job reported; None if nothing."""
    if progress is None:
        return None
    words = [f"{name} {value:.4g}" for name, value in progress.metrics.items()]
    words += [f"{name} {value}" for name, value in progress.parameters.items()]
    return MetricsView(
        metrics={n: v if math.isfinite(v) else None for n, v in progress.metrics.items()},
        parameters=dict(progress.parameters),
        text=", ".join(words),
    )
