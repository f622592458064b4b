"""Difference of two lists of records, and a version counter to await.

Pure. Tens of thousands of records stay while a few change: identical objects cost next to nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import compress, count
from operator import is_not
from typing import NamedTuple, TypeVar

from runai.hub_service.model.records import WorkloadRecord

T = TypeVar("T")


class Differences(NamedTuple):
    """Indexes of removed, changed and added items."""

    removed: list[int]
    """Indexes in the list before."""
    changed: list[tuple[int, int]]
    """Indexes in the list before, and in the list after."""
    new: int
    """Start of the added items in the list after."""

    def changed_or_added(self, after: Sequence[T]) -> list[T]:
        """Return the changed items as they are now, and the added ones."""
        return [*(after[now] for _, now in self.changed), *after[self.new :]]


def compared(
    before: Sequence[T], after: Sequence[T], is_same: Callable[[T, T], bool]
) -> Differences:
    """Compare two lists in order of arrival; `is_same` matches items.

    An item that moved counts as removed and added.
    """
    removed, changed = list[int](), list[tuple[int, int]]()
    old = iter(before)
    for now in compress(count(), map(is_not, old, after)):
        was = now + len(removed)
        while not is_same(before[was], after[now]):
            removed.append(was)
            was += 1
            if next(old, None) is None:
                return Differences(removed, changed, now)
        if before[was] is not after[now]:
            changed.append((was, now))
    new = min(len(before) - len(removed), len(after))
    removed += range(new + len(removed), len(before))
    return Differences(removed, changed, new)


def is_same_workload(one: WorkloadRecord, other: WorkloadRecord) -> bool:
    """Return True if both records are of one workload, not of two with one name."""
    mine, its = one.spec, other.spec
    return mine is its or (one.id, one.submitted, mine.user) == (
        other.id,
        other.submitted,
        its.user,
    )


class Broadcast:
    """A version counter that tasks can await."""

    def __init__(self) -> None:
        self.version = 0
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Increase the version, and wake all waiting tasks."""
        self.version += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int) -> int:
        """Return the current version as soon as it is later than `version`."""
        while self.version <= version:
            await self._next.wait()
        return self.version
