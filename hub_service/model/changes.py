"""Two lists of what is there, one after the other: what has come, changed and gone.

Tens of thousands wait while a few change: what is the same object costs next to nothing. Pure. Used
by those who follow the cluster.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import compress, count
from operator import is_not
from typing import NamedTuple, TypeVar

from runai.hub_service.model.records import WorkloadRecord

T = TypeVar("T")


class Differences(NamedTuple):
    """Places in the lists."""

    gone: list[int]
    """In the one before."""
    changed: list[tuple[int, int]]
    """In the one before, and in the one after."""
    new: int
    """In the one after, from here to the end."""

    def come(self, after: Sequence[T]) -> list[T]:
        """Return what has changed, as it is now, and what is new."""
        return [*(after[now] for _, now in self.changed), *after[self.new :]]


def compared(
    before: Sequence[T], after: Sequence[T], is_same: Callable[[T, T], bool]
) -> Differences:
    """Compare two lists, in which all stand as they came; `is_same` tells who is who.

    Who stands elsewhere has gone and come.
    """
    gone, changed = list[int](), list[tuple[int, int]]()
    old = iter(before)
    for now in compress(count(), map(is_not, old, after)):
        was = now + len(gone)
        while not is_same(before[was], after[now]):
            gone.append(was)
            was += 1
            if next(old, None) is None:
                return Differences(gone, changed, now)
        if before[was] is not after[now]:
            changed.append((was, now))
    new = min(len(before) - len(gone), len(after))
    gone += range(new + len(gone), len(before))
    return Differences(gone, changed, new)


def is_same_workload(one: WorkloadRecord, other: WorkloadRecord) -> bool:
    """Tell whether they are of one workload: not of a later one that has the name of another."""
    mine, its = one.spec, other.spec
    return mine is its or (one.id, one.submitted, mine.user) == (
        other.id,
        other.submitted,
        its.user,
    )


class Broadcast:
    """A counter that can be waited for."""

    def __init__(self) -> None:
        self.version = 0
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Wake everybody who waits for a version later than the last."""
        self.version += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int) -> int:
        """Return the current version as soon as it is later than `version`."""
        while self.version <= version:
            await self._next.wait()
        return self.version
