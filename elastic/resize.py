"""The launcher's resize decision: the workers of the next generation.

Pure, so that tests can list each rule as a table row. On the platform the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """The launcher's view of a live worker process."""

    name: str
    ready: bool = True
    """True once its model is built: it can join at the next update."""
    terminating: bool = False
    """True if it was asked to leave, or leaves by itself."""


def plan_ranks(
    ranks: Sequence[str], workers: Sequence[LiveWorker], desired: int, min_workers: int
) -> tuple[str, ...] | None:
    """Return the next generation's workers by rank; None: no change.

    Remaining workers keep their order; shrinking removes the highest ranks. Growth waits until all
    started workers are ready, since each resize pauses every rank; until then the current ranks
    keep training. Shrinking and recovery after a loss do not wait.

    Args:
        ranks: workers of the current generation; empty before the first.
        workers: live processes, oldest first.
        desired: number of workers that should train.
        min_workers: fewest workers that can train.
    """
    alive = {worker.name: worker for worker in workers}
    staying = [name for name in ranks if name in alive and not alive[name].terminating][:desired]
    if not staying and any(alive[name].terminating for name in ranks if name in alive):
        # The last rank is still writing the checkpoint that the next generation loads.
        return None
    joining = [
        worker.name
        for worker in workers
        if worker.ready and not worker.terminating and worker.name not in ranks
    ][: desired - len(staying)]
    starting = any(not worker.ready and not worker.terminating for worker in workers)
    lost = len(staying) < len(ranks)
    next_ranks = (*staying, *joining)
    can_recover_now = lost and staying and len(next_ranks) >= min_workers
    if starting and not can_recover_now:
        return None
    if len(next_ranks) < min_workers or next_ranks == tuple(ranks):
        return None
    return next_ranks
