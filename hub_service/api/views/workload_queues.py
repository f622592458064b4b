"""Queues of waiting workloads by project and by user, with the sums of each project.

Pure. Thousands of workloads wait where tens run: an overview lists the first of each queue and
counts the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from runai.hub_service.api.views.device_holders import Holders
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import ProjectSpec, WorkloadId, WorkloadRecord, WorkloadState

RECENT = 100
"""Finished workloads in an overview; `runai list` shows all."""

WAITING = frozenset({WorkloadState.QUEUED, WorkloadState.PAUSED, WorkloadState.RETRYING})

_LAST = 1 << 62

Name = TypeVar("Name", str, tuple[str, str])

NumberedRecords = dict[int, WorkloadRecord]
"""Records by number; later records have higher numbers."""


class SortedQueues(Mapping[str, Sequence[WorkloadRecord]]):
    """Queues by name, sorted lazily: readers need few of them."""

    def __init__(
        self,
        waiting: Mapping[str, NumberedRecords] | None = None,
        queues: Mapping[str, Sequence[WorkloadRecord]] | None = None,
    ) -> None:
        """Start with the `waiting` records by name; the `queues` are sorted already."""
        self._waiting = waiting or {}
        self._sorted = dict(queues or {})

    def __getitem__(self, name: str) -> Sequence[WorkloadRecord]:
        queue = self._sorted.get(name)
        if queue is None:
            queue = _oldest_first(self._waiting[name])
            queue.sort(key=place)
            self._sorted[name] = queue
        return queue

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def first(self, name: str, limit: int) -> Sequence[WorkloadRecord]:
        """Return the first `limit` of a queue, without sorting tens of thousands."""
        records = self._waiting.get(name, {})
        if name not in self._sorted:
            # Positions are in the project's queue: a user's own workloads have gaps between them.
            front = [(place(r), n) for n, r in records.items() if place(r) <= 2 * limit]
            if len(front) >= limit:
                front.sort()
                return [records[number] for _, number in front[:limit]]
        return self[name][:limit] if records else ()

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield the length of each queue, without sorting it."""
        return ((name, len(records)) for name, records in self._waiting.items())

    def sorted_except(self, names: Iterable[str]) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Return the queues that are sorted already, without some names."""
        queues = dict(self._sorted)
        for name in names:
            queues.pop(name, None)
        return queues


@dataclass(frozen=True)
class Queues:
    """Workloads that do not wait, and waiting ones in queue order."""

    present: Sequence[WorkloadRecord]
    """All that do not wait, except old finished ones; oldest first."""
    holding: Holders
    """The same object until a holder changes."""
    of_project: SortedQueues
    of_user: SortedQueues
    of_user_and_project: Mapping[tuple[str, str], NumberedRecords] = field(compare=False)
    """Waiting workloads by user and project."""
    _owned: Mapping[str, NumberedRecords] = field(compare=False)
    arrays: Sequence[WorkloadRecord] = ()
    """Waiting records that stand for several elements of an array."""

    def owned(self, user: str) -> list[WorkloadRecord]:
        """Return all workloads of a user; oldest first."""
        return _oldest_first(self._owned.get(user, {}))


NO_QUEUES = Queues((), Holders(), SortedQueues(), SortedQueues(), {}, {})


class LastQueues:
    """Queues of all workloads, updated incrementally.

    Thousands wait while a few come, change or go: all other records stay in place. Each record
    keeps its number as long as it exists, higher than the numbers of all earlier ones.
    """

    def __init__(self) -> None:
        """Start without records."""
        self.queues = NO_QUEUES
        """Queues at `version`; later changes leave the object as it is."""
        self.version: int | None = None
        """Version of the workloads; None: there was none yet."""
        self._records: dict[WorkloadId, tuple[int, WorkloadRecord]] = {}
        """All records with their numbers."""
        self._next = 0
        self._not_waiting: NumberedRecords = {}
        """Records that do not wait."""
        self._holding: NumberedRecords = {}
        self._projects, self._users, self._owned = _Index[str](), _Index[str](), _Index[str]()
        self._users_and_projects = _Index[tuple[str, str]]()
        self._arrays: NumberedRecords = {}

    def apply(self, changes: WorkloadChanges) -> None:
        """Update the queues by the changes since `version`."""
        if changes.version == self.version:
            return
        holders_changed = False
        for workload in list(self._records) if changes.is_all else changes.removed:
            if workload in self._records:
                number, record = self._records.pop(workload)
                holders_changed |= self._remove(number, record)
                self._owned.discard(record.spec.user, number)
        for record in changes.changed:
            number, before = self._records.get(record.id, (self._next, None))
            if before is None:
                self._next += 1
            else:
                holders_changed |= self._remove(number, before)
            self._records[record.id] = number, record
            holders_changed |= self._insert(number, record)
        self.version, last_queues = changes.version, self.queues
        holding = last_queues.holding
        if holders_changed:
            holding = Holders(tuple(_oldest_first(self._holding)))
        self.queues = Queues(
            self._present(),
            holding,
            SortedQueues(*self._projects.publish_with_unchanged(last_queues.of_project)),
            SortedQueues(*self._users.publish_with_unchanged(last_queues.of_user)),
            self._users_and_projects.publish(),
            self._owned.publish(),
            tuple(self._arrays.values()),
        )

    def _remove(self, number: int, record: WorkloadRecord) -> bool:
        """Remove a record from the indexes; return True if it held devices."""
        if record.state in WAITING:
            self._projects.discard(record.spec.project, number)
            self._users.discard(record.spec.user, number)
            self._users_and_projects.discard((record.spec.user, record.spec.project), number)
        self._not_waiting.pop(number, None)
        self._arrays.pop(number, None)
        return self._holding.pop(number, None) is not None

    def _insert(self, number: int, record: WorkloadRecord) -> bool:
        """Insert a record into the indexes; return True if it holds devices."""
        if record.state in WAITING:
            self._projects.insert(record.spec.project, number, record)
            self._users.insert(record.spec.user, number, record)
            self._users_and_projects.insert((record.spec.user, record.spec.project), number, record)
            if record.left:
                self._arrays[number] = record
        else:
            self._not_waiting[number] = record
        self._owned.insert(record.spec.user, number, record)
        if record.has_devices:
            self._holding[number] = record
        return record.has_devices

    def _present(self) -> list[WorkloadRecord]:
        """Return the records that do not wait, of finished ones the last RECENT; oldest first."""
        records = _oldest_first(self._not_waiting)
        long_ago = sum(record.state.finished for record in records) - RECENT
        present = []
        for record in records:
            if record.state.finished and long_ago > 0:
                long_ago -= 1
            else:
                present.append(record)
        return present


class _Index(Generic[Name]):
    """Copy-on-write index of records by name and number."""

    def __init__(self) -> None:
        self._published: dict[Name, NumberedRecords] = {}
        self._changed: dict[Name, NumberedRecords] = {}

    def insert(self, name: Name, number: int, record: WorkloadRecord) -> None:
        self._changed_copy(name)[number] = record

    def discard(self, name: Name, number: int) -> None:
        self._changed_copy(name).pop(number, None)

    def publish(self) -> Mapping[Name, NumberedRecords]:
        """Publish the changes, and return the records of each non-empty name."""
        changed, self._changed = self._changed, {}
        records_by_name = self._published | changed
        self._published = {name: records for name, records in records_by_name.items() if records}
        return self._published

    def publish_with_unchanged(
        self: "_Index[str]", queues: SortedQueues
    ) -> tuple[Mapping[str, NumberedRecords], Mapping[str, Sequence[WorkloadRecord]]]:
        """Return the published index, and the earlier queues that did not change."""
        unchanged = queues.sorted_except(self._changed)
        return self.publish(), unchanged

    def _changed_copy(self, name: Name) -> NumberedRecords:
        """Return the records of a name to change: a copy, once between two publications."""
        records = self._changed.get(name)
        if records is None:
            records = self._changed[name] = dict(self._published.get(name, ()))
        return records


def _oldest_first(records: NumberedRecords) -> list[WorkloadRecord]:
    return [records[number] for number in sorted(records)]


def place(record: WorkloadRecord) -> int:
    """Return a record's position in its queue; records without one sort last."""
    return _LAST if record.position is None else record.position


@dataclass
class ProjectSums:
    """Sums of a project's workloads, its children's included; milli-GPU."""

    allocated: int = 0
    building: int = 0
    waiting: int = 0
    utilized: float | None = None
    """GPUs kept busy; None: not measured."""


def sums_of(
    queues: Queues, projects: Mapping[str, ProjectSpec], busy: Mapping[str, float]
) -> Mapping[str, ProjectSums]:
    """Sum up each project; `busy` has the GPUs that its own workloads keep busy."""
    sums_by_project = {name: ProjectSums() for name in projects}

    def with_ancestors(project: str) -> Iterator[ProjectSums]:
        name: str | None = project
        while name is not None and name in sums_by_project:
            yield sums_by_project[name]
            name = projects[name].parent

    for project, length in queues.of_project.lengths():
        for sums in with_ancestors(project):
            sums.waiting += length
    for record in queues.arrays:
        for sums in with_ancestors(record.spec.project):
            sums.waiting += record.size - 1
    for project, (allocated, building) in queues.holding.allocated.items():
        for sums in with_ancestors(project):
            sums.allocated += allocated
            sums.building += building
    for project, gpus in busy.items():
        for sums in with_ancestors(project):
            sums.utilized = (sums.utilized or 0.0) + gpus
    return sums_by_project
