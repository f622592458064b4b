"""Membership of elastic jobs: pure transitions of the target (docs/dev/elastic.md).

A joiner counts once ready. `update_target` runs after every change of a row, the rest at exits.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.model.records import ElasticRules, ElasticState, WorkerRecord, WorkloadRecord
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase, WorkerStatus

MAX_WORKER_LOSSES = 3
"""A worker with more unexpected exits is not restarted while the rest trains."""

MIN_SPEED_CHANGE = 0.05
"""Minimum relative change of a stored speed, since each is a write to the disk."""

_JOINS = (WorkerPhase.READY, WorkerPhase.RUNNING)
_TRAINED = (WorkerPhase.RUNNING, WorkerPhase.DRAINING, WorkerPhase.LEFT)


def update_target(row: WorkloadRecord, now: float, store_of: Callable[[str], str]) -> Transition:
    """Update the target to the active workers; each target has a store of its own.

    Ranks keep their order; a joiner counts once it is ready. If no rank is left, all active workers
    start anew from the checkpoint. `store_of` returns an address for a new store at the first rank,
    by its name; "": not yet, then the target stays.
    """
    state = row.elastic
    if state is None or row.state.finished or row.halt == "done":
        return Transition(row)
    phases = {w.name: p for w in row.active if (p := state.phases.get(w.name)) is not None}
    before = state.target.ranks if state.target is not None else ()
    up_names = [w.name for w in _up_workers(row)]
    ranks = tuple(name for name in before if name in up_names)
    ranks += tuple(n for n in up_names if n not in before and phases.get(n) in _JOINS)
    if not any(w.state == "stopping" for w in row.active):  # they write a checkpoint first
        ranks = ranks or tuple(up_names)
    state = replace(state, phases=phases)
    if ranks == before:
        return Transition(_with_elastic(row, state))
    store = store_of(ranks[0]) if ranks else ""
    if ranks and not store:
        return Transition(_with_elastic(row, state))
    target = _next_target(row, state, ranks, now=now, store=store)
    if target.reason is Reason.START:
        state = replace(state, losses={})
    row = _with_elastic(row, replace(state, target=target))
    if target.reason not in {Reason.EXPAND, Reason.RECLAIM} or not phases:
        return Transition(row)
    return Transition(count_resize(row), (("resized", f"trains with {_workers_text(ranks)}"),))


def _workers_text(ranks: tuple[str, ...]) -> str:
    return f"{len(ranks)} worker{'s' * (len(ranks) != 1)}"


def _next_target(
    row: WorkloadRecord, state: ElasticState, ranks: tuple[str, ...], *, now: float, store: str
) -> Target:
    """Build the target after the present one, for these ranks, with the reason of the change."""
    before = state.target.ranks if state.target is not None else ()
    stopping = [w for w in row.active if w.state == "stopping"]
    deadline = datetime.fromtimestamp(now + row.spec.grace_seconds, UTC) if stopping else None
    if not ranks:
        reason = Reason.PAUSE
    elif not set(before) & set(ranks):
        reason = Reason.START
    else:
        reason = Reason.EXPAND if set(before) < set(ranks) else Reason.RECLAIM
    gpus = sum(len(w.devices) for w in row.active if w.name in ranks)
    return Target(
        gen=state.target.gen + 1 if state.target is not None else 1,
        ranks=ranks,
        store=store,
        gpus=gpus,
        least=row.spec.min_workers,
        most=max_gpus_of(row),
        reason=reason,
        deadline=deadline.isoformat(timespec="milliseconds") if deadline is not None else "",
    )


def apply_statuses(row: WorkloadRecord, statuses: Mapping[str, WorkerStatus]) -> Transition:
    """Update an elastic job from its workers' status reports, by worker name.

    Takes the workers' phases, the global batch size, and the speed (samples per second) by number
    of GPUs.
    """
    state = row.elastic
    if state is None:
        return Transition(row)
    names = {w.name for w in row.active}
    reported = {name: status for name, status in statuses.items() if name in names}
    phases = {**state.phases, **{name: status.state for name, status in reported.items()}}
    speeds = dict(state.throughput)
    for status in reported.values():
        if _is_speed(status, row):
            known = speeds.get(status.gpus)
            if known is None:
                speeds[status.gpus] = status.samples_per_s
            elif abs(status.samples_per_s - known) > MIN_SPEED_CHANGE * known:
                speeds[status.gpus] = (known + status.samples_per_s) / 2
        if status.global_batch and status.state is WorkerPhase.RUNNING:
            state = replace(state, global_batch=status.global_batch, steps=status.steps)
    saves = state.saves or bool(reported)
    return Transition(
        _with_elastic(row, replace(state, phases=phases, throughput=speeds, saves=saves))
    )


def _is_speed(status: WorkerStatus, record: WorkloadRecord) -> bool:
    """Return True if a status has a speed to store: a plausible one of a worker that trains."""
    is_plausible = 0 < status.gpus <= max_gpus_of(record) and 0 < status.samples_per_s < float(
        "inf"
    )
    return is_plausible and status.state is WorkerPhase.RUNNING


def joiners(record: WorkloadRecord) -> list[WorkerRecord]:
    """Return the active workers that are not among the ranks yet."""
    state = record.elastic
    ranks = state.target.ranks if state is not None and state.target is not None else ()
    return [w for w in _up_workers(record) if w.name not in ranks]


def survives_exit_of(row: WorkloadRecord, index: int) -> bool:
    """Return True if the job can train on after this worker's unexpected exit.

    It can if it uses the protocol and keeps at least `min_workers` of its ranks.
    """
    state = row.elastic
    if state is None or state.target is None or not state.phases or row.halt:
        return False
    left = [w for w in _up_workers(row) if w.index != index and w.name in state.target.ranks]
    return len(left) >= row.spec.min_workers


def requeue_lost_worker(row: WorkloadRecord, index: int) -> WorkloadRecord:
    """Requeue a worker that exited unexpectedly; after too many exits it stays out."""
    state = row.elastic
    assert state is not None
    worker = row.workers[index]
    losses = state.losses.get(worker.name, 0) + 1
    row = _with_elastic(row, replace(state, losses={**state.losses, worker.name: losses}))
    if losses > MAX_WORKER_LOSSES:
        return row
    workers = tuple(replace(w, state="pending") if w.index == index else w for w in row.workers)
    return replace(row, workers=workers)


def must_not_grow(record: WorkloadRecord, now: float, rules: ElasticRules) -> bool:
    """Return True if a job must not grow: just sized, or a worker is joining.

    A job below `min_workers` may always grow.
    """
    state = record.elastic
    if state is None or record.spec.workers == 1:
        return False
    if len(_up_workers(record)) < record.spec.min_workers:
        return False
    is_joining = bool(state.phases) and bool(joiners(record))
    return is_joining or (state.sized is not None and now < state.sized + rules.grow_every_s)


def is_done_by(row: WorkloadRecord, index: int) -> bool:
    """Return True if exit code 0 of this worker means that the training is finished."""
    state = row.elastic
    if state is None or state.target is None or not state.phases:
        return False
    return row.workers[index].name in state.target.ranks and not row.halt


def record_finishers(row: WorkloadRecord) -> WorkloadRecord:
    """Record the finishers after the first rank has finished: the ranks that have trained.

    Their exits decide the outcome. The target stays the same: each of its ranks ends by itself.
    """
    state = row.elastic
    assert state is not None
    assert state.target is not None
    finished = {w.name for w in row.workers if w.state == "finished"}
    finishers = tuple(
        name
        for name in state.target.ranks
        if name in finished or state.phases.get(name) in _TRAINED
    )
    return _with_elastic(row, replace(state, finishers=finishers))


def late_joiners(record: WorkloadRecord) -> list[WorkerRecord]:
    """Return the workers that are up and no finishers: they joined after the training was done."""
    state = record.elastic
    assert state is not None
    return [w for w in _up_workers(record) if w.name not in state.finishers]


def decides_outcome(row: WorkloadRecord, worker: WorkerRecord) -> bool:
    """Return True if a worker's exit decides the outcome: in an elastic job, a rank's."""
    state = row.elastic
    return row.halt != "done" or state is None or worker.name in state.finishers


def count_resize(row: WorkloadRecord) -> WorkloadRecord:
    """Count a resize: the workers go on, or the only one restarts."""
    state = row.elastic
    return row if state is None else _with_elastic(row, replace(state, resizes=state.resizes + 1))


def record_sizing(row: WorkloadRecord, *, now: float) -> WorkloadRecord:
    """Record the time of a change of size by the scheduler, for elastic jobs."""
    state = row.elastic
    return row if state is None else _with_elastic(row, replace(state, sized=now))


def max_gpus_of(record: WorkloadRecord) -> int:
    """Return the maximum of GPUs that an elastic job can use."""
    spec = record.spec
    gpus = spec.gpus_max if spec.workers == 1 else spec.gpus * spec.workers
    return gpus // WHOLE_GPU


def _up_workers(record: WorkloadRecord) -> list[WorkerRecord]:
    """Return the workers that run or start, and are not told to stop."""
    return [w for w in record.workers if w.state in {"starting", "running"}]


def _with_elastic(row: WorkloadRecord, state: ElasticState) -> WorkloadRecord:
    return replace(row, elastic=state)


def throughput_for_core(
    measured: Mapping[int, float], max_size: int, *, pays_from: float | None = 0.1
) -> dict[str, int]:
    """Return samples per 1000 seconds by number of GPUs; empty without measurements.

    Sizes that do not pay are left out: beyond the largest that pays nothing is gained. If the
    largest measured size pays, larger ones are extrapolated in proportion. `ElasticRules.pays_from`
    is the threshold; None returns an empty table, and every GPU pays.

    >>> throughput_for_core({1: 10.0, 2: 18.0}, 4)
    {'1': 10000, '2': 18000, '4': 36000}
    >>> throughput_for_core({1: 10.0, 2: 18.0, 3: 18.5}, 4)
    {'1': 10000, '2': 18000}
    """
    paying: list[tuple[int, float]] = []
    for size, speed in sorted(measured.items()) if pays_from is not None else ():
        if not paying or speed - paying[-1][1] >= (pays_from or 0) * _proportional_gain(
            paying[-1], size
        ):
            paying.append((size, speed))
    table = {str(size): round(speed * 1000) for size, speed in paying}
    if paying:
        size, speed = paying[-1]
        if size == max(measured) and size < max_size:
            table[str(max_size)] = round(speed * 1000 * max_size / size)
    return table


def _proportional_gain(before: tuple[int, float], size: int) -> float:
    """Return the gain in speed from one measured size to a larger one at the same efficiency."""
    gpus, speed = before
    return speed / gpus * (size - gpus)
