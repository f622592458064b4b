"""Changes of workloads since a version, and a version counter to await."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from runai.hub_service.model.records import WorkloadId, WorkloadRecord


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
