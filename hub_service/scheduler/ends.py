"""When running work is expected to end: as stated, or by how long it has lasted already.

Knows one workload at a time and nothing of quotas, places or plans. Used by `forecast` for expected
starts (X) and by `backfill` for what may be held and what may run meanwhile (O4).
"""

from __future__ import annotations

from typing import NamedTuple

from runai.hub_service.scheduler.model import WorkerState, Workload

_AT_LEAST = 60  # seconds that a run counts for when it has only begun


class End(NamedTuple):
    """When something running is expected to end."""

    at: int
    is_estimated: bool


def end_of(workload: Workload, now: int, factor: tuple[int, int] = (1, 1)) -> End | None:
    """Tell when a running workload ends: as stated, or by how long it has run already.

    None where it does not run, or nobody knows since when.

    >>> from runai.hub_service.scheduler.model import Worker, WorkerState, Workload
    >>> run = Worker(name="w", state=WorkerState.RUNNING, started=700)
    >>> end_of(Workload(name="x", project="a", workers=(run,)), now=1000)
    End(at=1300, is_estimated=True)
    """
    starts = [
        worker.started
        for worker in workload.workers
        if worker.state is WorkerState.RUNNING and worker.started is not None
    ]
    if not starts:
        return None
    elapsed = now - min(starts)
    stated = workload.expected_runtime
    if stated is not None and elapsed < stated:
        return End(min(starts) + stated, is_estimated=False)
    more, per = factor
    return End(now + max(elapsed, _AT_LEAST) * more // per, is_estimated=True)
