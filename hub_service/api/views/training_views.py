"""Views of a job's training: its reported progress, and an elastic job's sizes, batch and speeds.

Pure. One wording for the command line, the panel and the page.
"""

import math
from collections.abc import Sequence

from runai.hub_service.clusters.states.membership import joiners, max_gpus_of
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.schemas import ElasticView, MetricsView, ProgressView, SpeedView

_OF_PROGRESS = ("epoch", "overall_epochs", "finished_cells", "cells")
MAX_METRICS_IN_LINE = 4
"""Metrics that fit into a line; `describe` and the API have all."""


def progress_view(progress: Progress | None, *, reads: bool = True) -> ProgressView | None:
    """Return a job's progress and its first metrics; None if it reported nothing.

    `reads`: the caller may read the workload. Others get no metrics, since the program chose their
    names.

    >>> progress_view(Progress({"loss": 0.01234567, "epoch": 3, "overall_epochs": 10})).text
    '3 of 10 epochs · loss 0.01235'
    >>> progress_view(Progress({"finished_cells": 2, "cells": 5}))
    ProgressView(done=0.4, text='cell 3 of 5')
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
    if progress.cells is not None:  # of a notebook, one of whose cells may report epochs
        finished, cells = progress.cells
        done = finished / cells
        words.insert(0, f"cell {min(finished + 1, cells):g} of {cells:g}")
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


def elastic_view(record: WorkloadRecord) -> ElasticView | None:
    """Return an elastic job's GPUs, bounds, batch and speeds; None for any other workload."""
    state = record.elastic
    if state is None:
        return None
    ranks = state.target.ranks if state.target is not None else ()
    training = sum(len(w.devices) for w in record.workers if w.name in ranks)
    joining = sum(len(w.devices) for w in joiners(record))
    min_gpus = 1 if record.spec.workers == 1 else record.spec.min_workers
    max_gpus = max_gpus_of(record)
    speeds = tuple(
        SpeedView(gpus=gpus, samples_per_s=speed)
        for gpus, speed in sorted(state.throughput.items())
    )
    text = f"{training} of {min_gpus} to {_gpus(max_gpus)}"
    text += f", {joining} joining" if joining else ""
    if state.global_batch:
        steps = f"{state.steps} step{'s' * (state.steps != 1)}"
        text += f"; {state.global_batch} samples an update in {steps}"
    return ElasticView(
        workers=record.spec.workers,
        least=min_gpus,
        training=training,
        most=max_gpus,
        joining=joining,
        resizes=state.resizes,
        global_batch=state.global_batch or None,
        steps=state.steps or None,
        speeds=speeds,
        text=text,
        speed=_speed(speeds),
    )


def _speed(speeds: Sequence[SpeedView]) -> str:
    """Format each size's speed; units only at the first.

    >>> _speed([SpeedView(gpus=1, samples_per_s=99.51), SpeedView(gpus=2, samples_per_s=1190.4)])
    '99.5 samples/s on 1 GPU, 1190 on 2'
    """
    first, *other_speeds = [_number(s.samples_per_s) for s in speeds] or [""]
    if not first:
        return ""
    texts = [f"{first} samples/s on {_gpus(speeds[0].gpus)}"]
    return ", ".join(
        [*texts, *(f"{o} on {s.gpus}" for o, s in zip(other_speeds, speeds[1:], strict=True))]
    )


def _number(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
