"""Which workers train together next: the launcher's one decision.

Knows names and who is ready; neither processes nor files. Pure, so that each rule is a row of a
table. Called by `launcher`; the platform decides by its scheduler instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What the launcher sees of a process that is alive."""

    name: str
    ready: bool = True
    """Its model is built: it can train from the next update on."""
    leaving: bool = False
    """It was told to go, or goes of itself."""


def line_up(
    ranks: Sequence[str], workers: Sequence[WorkerView], wanted: int, least: int
) -> tuple[str, ...] | None:
    """Say who is to train from now on, by rank; None: go on as it is.

    Who trains stays in the order of ranks, the last goes first. Growing waits until all that were
    started are ready: each change of the line costs everybody a pause, and meanwhile the others
    train. Shrinking and going on after a loss wait for nobody.

    Args:
        ranks: who trains now; empty before the beginning.
        workers: the processes that are alive, oldest first.
        wanted: how many are to train.
        least: below so many nobody trains.
    """
    alive = {worker.name: worker for worker in workers}
    staying = [name for name in ranks if name in alive and not alive[name].leaving][:wanted]
    if not staying and any(alive[name].leaving for name in ranks if name in alive):
        # The last one is still writing the checkpoint that the next is to read.
        return None
    joining = [
        worker.name
        for worker in workers
        if worker.ready and not worker.leaving and worker.name not in ranks
    ][: wanted - len(staying)]
    starting = any(not worker.ready and not worker.leaving for worker in workers)
    lost = len(staying) < len(ranks)
    line = (*staying, *joining)
    if starting and (not lost or not staying or len(line) < least):
        return None
    if len(line) < least or line == tuple(ranks):
        return None
    return line
