"""A plan's word on workloads, for those who wait for it: each is woken once, when theirs is given.

Knows names only. The controller gives it, while a plan is carried out and when its cycle ends;
submissions wait.
"""

import asyncio
from collections.abc import Collection, Container

FEW = 25
"""Of more workloads of one submission the last may learn theirs with a later plan: the end of the
cycle that saw the first of them is waited for."""


class _Waiting:
    """One who waits, for the word on each of a few, or for the end of a cycle with the first."""

    def __init__(self, workloads: Collection[str]) -> None:
        self.first = next(iter(workloads))
        self.left = set(workloads) if len(workloads) <= FEW else None
        """Of whom nothing was said yet; None: they are too many to be waited for."""
        self.is_told = False
        """Whether something was said of the first."""
        self.ended = 0
        """Cycles, since."""
        self.over = asyncio.Event()


class Word:
    """Who waits for it."""

    def __init__(self) -> None:
        """Nobody does."""
        self._waiting: dict[_Waiting, None] = {}

    @property
    def is_awaited(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._waiting)

    async def on(self, workloads: Collection[str]) -> None:
        """Return when a plan's word on each of these is given, or the first plan's on most."""
        waiting = _Waiting(workloads)
        self._waiting[waiting] = None
        try:
            await waiting.over.wait()
        finally:
            del self._waiting[waiting]

    def give(self, on: Container[str]) -> None:
        """Wake those who wait for no others than these, and such as were given before."""
        for waiting in self._waiting:
            waiting.is_told |= waiting.first in on
            if waiting.left is None:
                continue
            waiting.left = {name for name in waiting.left if name not in on}
            if not waiting.left:
                waiting.over.set()

    def end(self, saw: Container[str]) -> None:
        """Wake those of whose workloads a cycle that has ended saw the first.

        The first to end may have begun before they came; who was not seen by the next is gone.
        """
        for waiting in self._waiting:
            waiting.ended += 1
            if waiting.first in saw or waiting.is_told or waiting.ended > 1:
                waiting.over.set()
