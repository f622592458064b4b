"""Difference of two lists of records, and a version counter to await.

Pure. Tens of thousands of records stay while a few change: identical objects cost next to nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import compress, count
from operator import is_not
from typing import NamedTuple, TypeVar

from runai.hub_service.model.records import WorkloadId, WorkloadRecord

T = TypeVar("T")


class Differences(NamedTuple):
    """Indexes of removed, changed and added items."""

    removed: list[int]
    """Indexes in the list before."""
    changed: list[tuple[int, int]]
    """Indexes in the list before, and in the list after."""
    added_from: int
    """Start of the added items in the list after."""

    def changed_or_added(self, after: Sequence[T]) -> list[T]:
        """Return the changed items as they are now, and the added ones."""
        return [*(after[index] for _, index in self.changed), *after[self.added_from :]]


def compared(
    before: Sequence[T], after: Sequence[T], is_same: Callable[[T, T], bool]
) -> Differences:
    """Compare two lists in order of arrival; `is_same` matches items.

    An item that moved counts as removed and added. Only pairs of different objects are looked at:
    `remaining` is behind `after` by one item for each removed one.
    """
    removed, changed = list[int](), list[tuple[int, int]]()
    remaining = iter(before)
    for new_index in compress(count(), map(is_not, remaining, after)):
        old_index = new_index + len(removed)
        while not is_same(before[old_index], after[new_index]):
            removed.append(old_index)
            old_index += 1
            if next(remaining, None) is None:
                return Differences(removed, changed, new_index)
        if before[old_index] is not after[new_index]:
            changed.append((old_index, new_index))
    added_from = min(len(before) - len(removed), len(after))
    removed += range(added_from + len(removed), len(before))
    return Differences(removed, changed, added_from)


def is_same_workload(record: WorkloadRecord, other: WorkloadRecord) -> bool:
    """Return True if both records are of one workload, not of two with one name."""
    spec, other_spec = record.spec, other.spec
    return spec is other_spec or (record.id, record.submitted, spec.user) == (
        other.id,
        other.submitted,
        other_spec.user,
    )


class WorkloadChanges(NamedTuple):
    """Workloads that came, changed or went since a version.

    Readers drop the removed ones first: a name that was deleted and submitted anew is in both.
    """

    version: int
    """Version of this state; the next call continues from it."""
    changed: Sequence[WorkloadRecord]
    """New and changed workloads as they are now, oldest first."""
    removed: Sequence[WorkloadId] = ()
    """Removed workloads; readers may never have seen some of them."""
    is_all: bool = False
    """True if `changed` is all workloads: readers drop those that are not in it."""


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

    async def newer_than(self, version: int) -> int:
        """Return the current version as soon as it is later than `version`."""
        while self.version <= version:
            await self._next.wait()
        return self.version
