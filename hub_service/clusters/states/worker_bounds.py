"""Changes to the number of workers of a submitted elastic job.

Pure transitions of a row. New workers wait like the rest; surplus ones are stopped, and leave the
record when their processes are gone.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.lifecycle import stopped
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.clusters.states.user_actions import refuse_unless_job
from runai.hub_service.model.records import StateReason, WorkerRecord, WorkloadRecord
from runai.hub_service.wire.errors import Conflict, InvalidRequest

_WAITING_STATES = ("pending", "reserved")


def scaled(
    row: WorkloadRecord, *, workers: int | None, min_workers: int | None, by: str, now: float
) -> Transition:
    """Set the maximum and minimum of workers of an elastic job; None: unchanged.

    Workers with the highest indexes go first. A repeat changes nothing.

    Raises:
        Conflict: it is finished, a session, or no elastic job of several workers.
        InvalidRequest: the numbers contradict each other.
    """
    refuse_unless_job(row, "scaled")
    spec = row.spec
    if not spec.elastic or spec.workers == 1:
        what = "one process on as many GPUs as there are" if spec.elastic else "not elastic"
        raise Conflict(
            f"{row.id} is {what}, so its number of workers stays as it is.",
            hint="Submit it again with --elastic and --workers.",
            code="not_scalable",
        )
    upper = spec.workers if workers is None else workers
    lower = min(spec.min_workers, upper) if min_workers is None else min_workers
    if upper < 2:
        raise InvalidRequest(
            f"{row.id} is elastic: its --workers must be at least 2.",
            hint="To let it run with 1 worker, set --min-workers 1.",
        )
    if lower > upper:
        raise InvalidRequest(
            f"--min-workers {lower} is more than --workers {upper}.",
            hint="Ask for more --workers, or lower --min-workers.",
        )
    if (upper, lower) == (spec.workers, spec.min_workers):
        return Transition(row)
    row = _with_bounds(row, upper, lower)
    text = f"{by} set its workers to {lower} to {upper}"
    surplus = [w.index for w in row.workers[upper:] if w.state in {"starting", "running"}]
    if not surplus:
        return Transition(trimmed(row), (("scaled", text),))
    transition = stopped(row, surplus, StateReason("scaled", text), now=now)
    return Transition(transition.row, (("scaled", text), *transition.events))


def trimmed(row: WorkloadRecord) -> WorkloadRecord:
    """Drop surplus workers without processes; the rest keep their indexes."""
    workers = row.workers
    while len(workers) > row.spec.workers and workers[-1].state in _WAITING_STATES:
        workers = workers[:-1]
    if workers == row.workers:
        return row
    return replace(row, workers=workers)


def with_scale(row: WorkloadRecord) -> WorkloadRecord:
    """Apply the changed numbers of workers to a stored row: its spec is written once."""
    if row.scale is None:
        return row
    upper, lower = row.scale
    spec = replace(row.spec, workers=upper, min_workers=lower)
    return replace(row, spec=spec)


def _with_bounds(row: WorkloadRecord, upper: int, lower: int) -> WorkloadRecord:
    """Set the maximum and minimum of workers, and add the workers that are missing."""
    workers = row.workers
    new_workers = tuple(
        WorkerRecord(f"{row.id}-{n}", n, "pending") for n in range(len(workers), upper)
    )
    return with_scale(replace(row, workers=workers + new_workers, scale=(upper, lower)))
