"""Waiters for the scheduler's decisions on workloads; each waiter is woken once.

The controller reports decisions while it applies a plan, and the end of its cycle; submissions
wait.
"""

import asyncio
from collections.abc import Collection, Container

FEW = 25
"""Most workloads that are waited for one by one. A larger submission may be decided in several
cycles: the end of the first one is waited for."""


class _Waiting:
    """One waiter, for decisions on a few workloads, or for the end of a cycle with the first."""

    def __init__(self, workloads: Collection[str]) -> None:
        self.first = next(iter(workloads))
        self.left = set(workloads) if len(workloads) <= FEW else None
        """Workloads without a decision yet; None: too many to wait for each."""
        self.is_told = False
        """True if the first has a decision."""
        self.ended = 0
        """Cycles that ended since."""
        self.over = asyncio.Event()


class Word:
    """All waiters."""

    def __init__(self) -> None:
        """Begin without one."""
        self._waiting: dict[_Waiting, None] = {}

    @property
    def is_awaited(self) -> bool:
        """Return True if there is a waiter."""
        return bool(self._waiting)

    async def on(self, workloads: Collection[str]) -> None:
        """Return when each of these has a decision; of many, after the first plan."""
        waiting = _Waiting(workloads)
        self._waiting[waiting] = None
        try:
            await waiting.over.wait()
        finally:
            del self._waiting[waiting]

    def give(self, on: Container[str]) -> None:
        """Wake the waiters whose workloads all have a decision, with these."""
        for waiting in self._waiting:
            waiting.is_told |= waiting.first in on
            if waiting.left is None:
                continue
            waiting.left = {name for name in waiting.left if name not in on}
            if not waiting.left:
                waiting.over.set()

    def end(self, saw: Container[str]) -> None:
        """Wake the waiters whose first workload was in the snapshot of the ended cycle.

        That cycle may have begun before the submission; a workload that the next one does not see
        either is gone.
        """
        for waiting in self._waiting:
            waiting.ended += 1
            if waiting.first in saw or waiting.is_told or waiting.ended > 1:
                waiting.over.set()
