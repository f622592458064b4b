"""View of an elastic job: sizes, batch and speeds, in numbers and in words.

Pure. One wording for the command line, the panel and the page.
"""

from collections.abc import Sequence

from runai.hub_service.clusters.states.membership import joiners, max_gpus_of
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.schemas import ElasticView, SpeedView


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
