"""Rows of a cluster, with indexes for the frequent queries.

The cost of a change depends on the rows that changed: tens of thousands of jobs wait while a few
change, and no submission, request or cycle may scan all of them.
"""

from collections import Counter
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from dataclasses import replace
from itertools import compress, count
from operator import attrgetter, is_not

from runai.hub_service.clusters.states import lifecycle
from runai.hub_service.clusters.states.retention import FinishedWorkloads, RetentionPolicy
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.clusters.workloads import snapshot_builder
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.model import arrays
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import (
    ACTIVE,
    ElasticRules,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.snapshot import Wait, Workload

FORGOTTEN_AT_ONCE = 5
"""Deletions per batch; each is a write to the disk that blocks other tasks."""

_workload = attrgetter("workload")


class _UsedNames(Container[str]):
    """The names in use: of rows, of arrays' elements without one, and of whole arrays."""

    def __init__(self, index: "WorkloadIndex") -> None:
        self._index = index

    def __contains__(self, workload: object) -> bool:
        return isinstance(workload, str) and self._index.record(workload) is not None


class WorkloadIndex(MutableMapping[WorkloadId, WorkloadRecord]):
    """All rows by name, oldest first."""

    def __init__(
        self,
        rows: Iterable[WorkloadRecord],
        retention: RetentionPolicy,
        build_element: Callable[[WorkloadSpec, float], WorkloadRecord],
        slots: Callable[[WorkloadSpec], int],
    ) -> None:
        """Index the store's rows; `retention` limits how long finished ones stay.

        `build_element` builds the row of an array's element, submitted at a time; `slots` bounds
        how many elements can hold devices at once.
        """
        self._build_element, self._slots = build_element, slots
        self.names: Container[WorkloadId] = _UsedNames(self)
        self._rows: dict[WorkloadId, WorkloadRecord] = {}
        self._numbers: dict[WorkloadId, int] = {}
        """Sequence numbers: each higher than all before it, and never reused."""
        self._next_numbers = count()
        self._log = ChangeLog()
        self._records: tuple[int, Sequence[WorkloadRecord]] = 0, []
        """All records at a version of the log."""
        self._active: dict[WorkloadId, None] = {}
        self._with_devices: dict[WorkloadId, None] = {}
        """Workloads that have devices or have released them."""
        self._holders: Mapping[WorkloadId, WorkloadRecord] = {}
        self._timed: dict[WorkloadId, None] = {}
        self._started_jobs: set[WorkloadId] = set()
        self._by_key: dict[tuple[str, str], list[WorkloadId]] = {}
        self._unfinished_jobs = Counter[str]()
        """Jobs, by user."""
        self._core_workloads: dict[WorkloadId, Workload] = {}
        """The snapshot's workloads, apart from elements without rows."""
        self._elements: dict[WorkloadId, dict[WorkloadId, None]] = {}
        """Elements with a row of their own, by array."""
        self._windows: dict[WorkloadId, dict[WorkloadId, Workload]] = {}
        """Of each array, the next elements that the scheduler may start."""
        self._to_build: set[WorkloadId] = set()
        self._elastic: set[WorkloadId] = set()
        """Elastic workloads: their part of the snapshot depends on the time too."""
        self.reported_waits: dict[WorkloadId, Wait] = {}
        """Waits of the last plan that the rows show."""
        self._finished = FinishedWorkloads(retention)
        for row in rows:
            self[row.id] = row
        # Rows come in order of submission, and expire in order of their end.
        self._finished = FinishedWorkloads(retention)
        for row in sorted(self._rows.values(), key=lambda row: row.finished or 0.0):
            self._add_if_finished(row)

    # -- the mapping -----------------------------------------------------------------------------

    def __getitem__(self, workload: WorkloadId) -> WorkloadRecord:
        return self._rows[workload]

    def __contains__(self, workload: object) -> bool:
        return workload in self._rows

    def __iter__(self) -> Iterator[WorkloadId]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a row, also of an array's element that has none yet; None: there is no such."""
        row = self._rows.get(workload)
        if row is None and (found := self.array_of_element(workload)) is not None:
            return self._element_row(*found)
        return row

    def array_of_element(self, workload: WorkloadId) -> tuple[WorkloadRecord, int] | None:
        """Return the row of the array that stands for an element, and the element's index."""
        if (named := arrays.split_id(workload)) is None:
            return None
        row = self._rows.get(named[0])
        return (row, named[1]) if row and arrays.has(row.left, named[1]) else None

    def _element_row(self, array: WorkloadRecord, index: int) -> WorkloadRecord:
        """Build the row of an element that has none: it waits as its array does."""
        row = self._build_element(arrays.element(array.spec, index), array.submitted)
        return replace(
            row,
            state=array.state,
            reason=array.reason,
            position=array.position,
            uid=array.uid,
            account_uid=array.account_uid,
        )

    def row_ids(self, workload: WorkloadId) -> list[WorkloadId]:
        """Return the ids of the rows of a name: of an array, its own and its elements'."""
        row = self._rows.get(workload)
        if row is not None and not row.spec.is_array:
            return [workload]
        elements = list(self._elements.get(workload, ()))
        return [workload, *elements] if row is not None or not elements else elements

    def record(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return the record of a workload, of an array's element or of a whole array."""
        row = self._rows.get(workload)
        elements = self._elements.get(workload)
        if row.spec.is_array if row is not None else elements:
            records = [self._rows[name] for name in elements or ()]
            return arrays.whole(row, records)
        return self.row(workload)

    @property
    def has_arrays(self) -> bool:
        """Return True if elements of any array have no row of their own."""
        return bool(self._windows)

    def array_transitions(
        self, changed: Mapping[WorkloadId, Transition]
    ) -> dict[WorkloadId, Transition]:
        """Return the transitions of arrays whose elements get rows of their own in `changed`."""
        element_indexes: dict[WorkloadId, set[int]] = {}
        for workload in changed:
            if (
                workload not in self._rows
                and (found := self.array_of_element(workload)) is not None
            ):
                element_indexes.setdefault(found[0].id, set()).add(found[1])
        transitions: dict[WorkloadId, Transition] = {}
        for array, indexes in element_indexes.items():
            transition = changed.get(array, Transition(self._rows[array]))
            if transition.row is not None:
                left = arrays.without(transition.row.left, indexes)
                row = replace(transition.row, left=left)
                transitions[array] = replace(transition, row=row if left else None)
        return transitions

    def keys(self) -> KeysView[WorkloadId]:
        """Return all names, oldest first; as quick as a plain dictionary."""
        return self._rows.keys()

    def values(self) -> ValuesView[WorkloadRecord]:
        """Return all rows, oldest first; as quick as a plain dictionary."""
        return self._rows.values()

    def __setitem__(self, workload: WorkloadId, row: WorkloadRecord) -> None:
        before = self._rows.get(workload)
        if before is None:
            self._numbers[workload] = next(self._next_numbers)
        self._unfinished_jobs[row.spec.user] += _unfinished_jobs(row) - _unfinished_jobs(before)
        self.update_queue_status(row)
        self._to_build.add(workload)
        _set_member(self._active, workload, present=any(w.state in ACTIVE for w in row.workers))
        has = row.has_devices or row.released is not None
        _set_member(self._with_devices, workload, present=has)
        _set_member(self._timed, workload, present=lifecycle.next_due(row) is not None)
        if row.elastic is not None:
            self._elastic.add(workload)
        if row.attempts and row.spec.kind == "job":
            self._started_jobs.add(workload)
        self._add_if_finished(row)
        if before is None and row.spec.array_index is not None:
            self._elements.setdefault(workload.rpartition("-")[0], {})[workload] = None
        if before is None and row.spec.key:
            self._by_key.setdefault(_key(row.spec), []).append(workload)

    def __delitem__(self, workload: WorkloadId) -> None:
        row = self._rows.pop(workload)
        self._unfinished_jobs[row.spec.user] -= _unfinished_jobs(row)
        self._windows.pop(workload, None)
        if row.spec.array_index is not None:
            array = workload.rpartition("-")[0]
            self._elements[array].pop(workload)
            if not self._elements[array]:
                del self._elements[array]
        self._numbers.pop(workload)
        self._log.add_removal(workload)
        self._active.pop(workload, None)
        self._with_devices.pop(workload, None)
        self._timed.pop(workload, None)
        self._core_workloads.pop(workload, None)
        self.reported_waits.pop(workload, None)
        self._finished.discard(workload, row.spec.user)
        for workloads in (self._to_build, self._elastic, self._started_jobs):
            workloads.discard(workload)
        if row.spec.key:
            same = self._by_key[_key(row.spec)]
            same.remove(workload)
            if not same:
                del self._by_key[_key(row.spec)]

    def update_queue_status(self, row: WorkloadRecord) -> None:
        """Replace a row of which only the queue position and the reason have changed."""
        self._rows[row.id] = row
        self._log.add_change(row.id)
        self.reported_waits.pop(row.id, None)

    def unreported_waits(self, waits: Sequence[Wait]) -> list[Wait]:
        """Return the waits that rows may not show yet: of thousands, few.

        The scheduler returns the same object for an unchanged wait.
        """
        known = map(self.reported_waits.get, map(_workload, waits))
        return list(compress(waits, map(is_not, known, waits)))

    # -- queries ---------------------------------------------------------------------------------

    def records(self) -> Sequence[WorkloadRecord]:
        """Return all records, oldest first; the same object until something changes."""
        if self._records[0] != self._log.version:
            self._records = self._log.version, list(self._rows.values())
        return self._records[1]

    def changes(self, since: int | None) -> WorkloadChanges:
        """Return the changes of the records since a version; None: all records."""
        return self._log.since(since, self._rows, self._numbers.__getitem__)

    def active_rows(self) -> Iterator[WorkloadRecord]:
        """Yield the rows with processes, or possibly with some."""
        return (self._rows[workload] for workload in self._active)

    def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return workloads with devices or released ones; the same object until one changes."""
        holders = {workload: self._rows[workload] for workload in self._with_devices}
        if holders != self._holders:
            self._holders = holders
        return self._holders

    def unfinished_jobs(self, user: str) -> int:
        """Return the number of a user's unfinished jobs."""
        return self._unfinished_jobs[user]

    def unfinished(self, project: str) -> list[WorkloadId]:
        """Return a project's unfinished workloads."""
        return [
            row.id
            for row in self._rows.values()
            if row.spec.project == project and not row.state.finished
        ]

    def finished(self, project: str) -> list[WorkloadRecord]:
        """Return a project's finished workloads."""
        return [
            row for row in self._rows.values() if row.spec.project == project and row.state.finished
        ]

    def timed(self) -> Iterator[WorkloadRecord]:
        """Yield the rows with a transition that depends on time alone."""
        return (self._rows[workload] for workload in list(self._timed))

    def expired(self, now: float) -> Iterator[WorkloadId]:
        """Yield a batch of expired finished workloads; the caller deletes each at once."""
        for _ in range(FORGOTTEN_AT_ONCE):
            due = self._finished.next_expiry()
            if due is None or due[0] > now:
                break
            yield due[1]

    def next_due(self) -> float | None:
        """Return when the next transition or expiry is due; None: never."""
        times = [lifecycle.next_due(row) for row in self.timed()]
        due = self._finished.next_expiry()
        times += [due[0]] if due is not None else []
        return min((time for time in times if time is not None), default=None)

    def started_jobs(self, only: Iterable[WorkloadId] | None = None) -> Iterator[WorkloadRecord]:
        """Yield the jobs that have ever started, or `only` some of them."""
        started_jobs = self._started_jobs if only is None else self._started_jobs.intersection(only)
        return (self._rows[workload] for workload in started_jobs)

    def submitted_under(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return a user's workloads with this key; none for an empty key."""
        workloads = self._by_key.get((user, key), ()) if key else ()
        return [self._rows[workload] for workload in workloads]

    def for_core(self, now: float, rules: ElasticRules) -> tuple[Workload, ...]:
        """Return the snapshot's workloads; unchanged ones are the same objects as before."""
        for workload in self._to_build | self._elastic:
            self._build(workload, now, rules)
        self._to_build.clear()
        windows = (workload for window in self._windows.values() for workload in window.values())
        return (*self._core_workloads.values(), *windows)

    def _build(self, workload: WorkloadId, now: float, rules: ElasticRules) -> None:
        """Build a row's part of the snapshot; an equal one stays the same object."""
        row = self._rows[workload]
        if row.spec.is_array:
            self._build_array(row, now, rules)
            return
        built = snapshot_builder.workload_for_core(row, now, rules)
        if built is None:
            self._core_workloads.pop(workload, None)
        elif built != self._core_workloads.get(workload):
            self._core_workloads[workload] = built

    def _build_array(self, row: WorkloadRecord, now: float, rules: ElasticRules) -> None:
        """Build the next elements: one more than can start, so that its wait has a reason."""
        known = self._windows.get(row.id, {})
        window: dict[WorkloadId, Workload] = {}
        if snapshot_builder.wants_devices(row):
            for index in arrays.first(row.left, self._slots(row.spec) + 1):
                name = arrays.element_id(row.id, index)
                built = known.get(name) or snapshot_builder.workload_for_core(
                    self._element_row(row, index), now, rules
                )
                if built is not None:
                    window[name] = built
        self._windows[row.id] = window

    def _add_if_finished(self, row: WorkloadRecord) -> None:
        """Let a finished workload expire."""
        if row.state.finished and row.finished is not None:
            self._finished.add(row.id, row.spec.user, row.finished)


def _unfinished_jobs(row: WorkloadRecord | None) -> int:
    """Return how many unfinished jobs a row stands for: an array counts as its elements."""
    if row is None or row.spec.kind != "job" or row.state.finished:
        return 0
    return row.size


def _key(spec: WorkloadSpec) -> tuple[str, str]:
    return spec.user, spec.key


def _set_member(named: dict[WorkloadId, None], workload: WorkloadId, *, present: bool) -> None:
    if present:
        named[workload] = None
    else:
        named.pop(workload, None)
