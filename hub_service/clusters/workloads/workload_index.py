"""Rows of a cluster, with indexes for the frequent queries.

The cost of a change depends on the rows that changed: tens of thousands of jobs wait while a few
change, and no submission, request or cycle may scan all of them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import (
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass
from itertools import compress, count, islice
from operator import attrgetter, is_not

from runai.hub_service.clusters.states import lifecycle
from runai.hub_service.clusters.states.retention import Finished, RetentionPolicy
from runai.hub_service.clusters.states.state import ACTIVE, StoredWorkload
from runai.hub_service.clusters.workloads import snapshot_builder
from runai.hub_service.model.records import ElasticRules, WorkloadId, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.snapshot import Wait, Workload

FORGOTTEN_AT_ONCE = 5
"""Deletions per batch; each is a write to the disk that blocks other tasks."""

DRAWN_AT_ONCE = 200
"""Workloads built for the snapshot between yields to the event loop."""

TAKEN_IN = 1000
"""Maximum of new workloads of one user's array that one snapshot adds.

A later submission waits for the end of the current cycle and for the next one.
"""
TAKEN_IN_BETWEEN = 100
"""The same for an urgent cycle, for which the user of the urgent change waits."""

_workload = attrgetter("workload")


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """A plan's wait for a workload, with the row before and after it."""

    wait: Wait
    before: StoredWorkload
    row: StoredWorkload


class WorkloadIndexer(MutableMapping[WorkloadId, StoredWorkload]):
    """All rows by name, oldest first."""

    def __init__(self, rows: Iterable[StoredWorkload], keeping: RetentionPolicy) -> None:
        """Index the store's rows; `keeping` limits how long finished ones stay."""
        self._rows: dict[WorkloadId, StoredWorkload] = {}
        self._numbers: dict[WorkloadId, int] = {}
        """Sequence numbers: each higher than all before it, and never reused."""
        self._next = 0
        self._records: list[WorkloadRecord] = []
        self._listed: list[int] = []
        """Sequence numbers of `_records`."""
        self._gone: list[int] = []
        """Sequence numbers of deleted workloads that `_records` may still have."""
        self._told_otherwise: dict[WorkloadId, None] = {}
        """Workloads with records that are not in `_records` yet; new ones in order."""
        self._holding: dict[WorkloadId, None] = {}
        self._having: dict[WorkloadId, None] = {}
        """Workloads that have devices or have released them."""
        self._holders: Mapping[WorkloadId, WorkloadRecord] = {}
        self._timed: dict[WorkloadId, None] = {}
        self._begun: set[WorkloadId] = set()
        self._by_key: dict[tuple[str, str], list[WorkloadId]] = {}
        self._unfinished = Counter[str]()
        """Jobs, by user."""
        self._drawn: dict[WorkloadId, Workload] = {}
        self._coming: dict[str, dict[WorkloadId, Workload]] = {}
        """Built, but not in a snapshot yet: by user, in order of submission."""
        self._to_draw: set[WorkloadId] = set()
        self._sized: set[WorkloadId] = set()
        """Elastic workloads: their part of the snapshot depends on the time too."""
        self.said: dict[WorkloadId, Wait] = {}
        """Waits of the last plan that the rows show."""
        self._finished = Finished(keeping)
        for row in rows:
            self[row.id] = row
        # Rows come in order of submission, and expire in order of their end.
        self._finished = Finished(keeping)
        for row in sorted(self._rows.values(), key=lambda row: row.record.finished or 0.0):
            self._note_end(row)

    # -- the mapping -----------------------------------------------------------------------------

    def __getitem__(self, workload: WorkloadId) -> StoredWorkload:
        return self._rows[workload]

    def __contains__(self, workload: object) -> bool:
        return workload in self._rows

    def __iter__(self) -> Iterator[WorkloadId]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, workload: WorkloadId) -> StoredWorkload | None:
        """Return a row, or None; `get` of the mixin would raise and catch KeyError first."""
        return self._rows.get(workload)

    def keys(self) -> KeysView[WorkloadId]:
        """Return all names, oldest first; as quick as a plain dictionary."""
        return self._rows.keys()

    def values(self) -> ValuesView[StoredWorkload]:
        """Return all rows, oldest first; as quick as a plain dictionary."""
        return self._rows.values()

    def __setitem__(self, workload: WorkloadId, row: StoredWorkload) -> None:
        known = self._rows.get(workload)
        if known is None:
            self._number([workload])
        self._unfinished[row.spec.user] += _is_unfinished(row) - _is_unfinished(known)
        self.say(row)
        self._forget_coming(workload, row)
        self._to_draw.add(workload)
        _keep(self._holding, workload, wanted=any(w.state in ACTIVE for w in row.record.workers))
        has = row.record.holds_devices or row.record.released is not None
        _keep(self._having, workload, wanted=has)
        _keep(self._timed, workload, wanted=lifecycle.next_due(row) is not None)
        if row.record.elastic is not None:
            self._sized.add(workload)
        if row.record.attempts and row.spec.kind == "job":
            self._begun.add(workload)
        self._note_end(row)
        if known is None and row.spec.key:
            self._by_key.setdefault(_key(row.spec), []).append(workload)

    def __delitem__(self, workload: WorkloadId) -> None:
        row = self._rows.pop(workload)
        self._unfinished[row.spec.user] -= _is_unfinished(row)
        self._gone.append(self._numbers.pop(workload))
        self._told_otherwise.pop(workload, None)
        self._holding.pop(workload, None)
        self._having.pop(workload, None)
        self._timed.pop(workload, None)
        self._drawn.pop(workload, None)
        self._forget_coming(workload, row)
        self.said.pop(workload, None)
        self._finished.discard(workload, row.spec.user)
        for named in (self._to_draw, self._sized, self._begun):
            named.discard(workload)
        if row.spec.key:
            same = self._by_key[_key(row.spec)]
            same.remove(workload)
            if not same:
                del self._by_key[_key(row.spec)]

    def add(self, rows: Sequence[StoredWorkload], drawn: Sequence[Workload | None]) -> None:
        """Add new workloads, none begun, with their part of the snapshot: thousands at once."""
        names = [row.id for row in rows]
        self._number(names)
        self._rows.update(zip(names, rows, strict=True))
        self._told_otherwise.update(dict.fromkeys(names))
        self._unfinished.update(row.spec.user for row in rows if _is_unfinished(row))
        for name, row, workload in zip(names, rows, drawn, strict=True):
            if row.record.elastic is not None:
                self._sized.add(name)  # and built for each snapshot
            elif workload is not None:
                self._coming.setdefault(row.spec.user, {})[name] = workload
            if row.spec.key:
                self._by_key.setdefault(_key(row.spec), []).append(name)

    def say(self, row: StoredWorkload) -> None:
        """Replace a row of which only the queue position and the reason have changed."""
        self._rows[row.id] = row
        self._told_otherwise[row.id] = None
        self.said.pop(row.id, None)

    def say_all(self, told: Iterable[PendingStatus]) -> None:
        """Replace such rows at once; skip rows that have changed since, for the next plan."""
        rows = self._rows
        still = [said for said in told if rows.get(said.wait.workload) is said.before]
        rows.update((said.wait.workload, said.row) for said in still)
        self._told_otherwise.update((said.wait.workload, None) for said in still)
        self.said.update((said.wait.workload, said.wait) for said in still)

    def unsaid(self, waits: Sequence[Wait]) -> list[Wait]:
        """Return the waits that rows may not show yet: of thousands, few.

        The scheduler returns the same object for an unchanged wait.
        """
        known = map(self.said.get, map(_workload, waits))
        return list(compress(waits, map(is_not, known, waits)))

    # -- queries ---------------------------------------------------------------------------------

    def records(self) -> Sequence[WorkloadRecord]:
        """Return all records, oldest first; the same object until something changes."""
        if self._told_otherwise or self._gone:
            # Callers may keep the list, so the next one is a new object; a copy is cheap.
            self._records = list(self._records)
            self._take_out()
            for workload in self._told_otherwise:
                self._put_record(self._numbers[workload], self._rows[workload].record)
            self._told_otherwise.clear()
        return self._records

    def _take_out(self) -> None:
        """Remove deleted workloads from the list; some were never in it."""
        stays = bytearray(b"\1") * len(self._listed)
        for number in self._gone:
            place = bisect_left(self._listed, number)
            if place < len(self._listed) and self._listed[place] == number:
                stays[place] = 0
        if not all(stays):
            self._records = list(compress(self._records, stays))
            self._listed = list(compress(self._listed, stays))
        self._gone.clear()

    def _put_record(self, number: int, record: WorkloadRecord) -> None:
        if not self._listed or number > self._listed[-1]:
            self._listed.append(number)
            self._records.append(record)
        else:
            self._records[bisect_left(self._listed, number)] = record

    def _number(self, names: Sequence[WorkloadId]) -> None:
        self._numbers.update(zip(names, count(self._next), strict=False))
        self._next += len(names)

    def holding(self) -> Iterator[StoredWorkload]:
        """Yield the rows with processes, or possibly with some."""
        return (self._rows[workload] for workload in self._holding)

    def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return workloads with devices or released ones; the same object until one changes."""
        found = {workload: self._rows[workload].record for workload in self._having}
        if found != self._holders:
            self._holders = found
        return self._holders

    def unfinished_jobs(self, user: str) -> int:
        """Return the number of a user's unfinished jobs."""
        return self._unfinished[user]

    def unfinished(self, project: str) -> list[WorkloadId]:
        """Return a project's unfinished workloads."""
        return [
            row.id
            for row in self._rows.values()
            if row.spec.project == project and not row.record.state.finished
        ]

    def finished(self, project: str) -> list[StoredWorkload]:
        """Return a project's finished workloads."""
        return [
            row
            for row in self._rows.values()
            if row.spec.project == project and row.record.state.finished
        ]

    def timed(self) -> Iterator[StoredWorkload]:
        """Yield the rows with a transition that depends on time alone."""
        return (self._rows[workload] for workload in list(self._timed))

    def outlived(self, now: float) -> Iterator[WorkloadId]:
        """Yield a batch of expired finished workloads; the caller deletes each at once."""
        for _ in range(FORGOTTEN_AT_ONCE):
            due = self._finished.next()
            if due is None or due[0] > now:
                break
            yield due[1]

    def next_due(self) -> float | None:
        """Return when the next transition or expiry is due; None: never."""
        found = [lifecycle.next_due(row) for row in self.timed()]
        due = self._finished.next()
        found += [due[0]] if due is not None else []
        return min((when for when in found if when is not None), default=None)

    def begun(self, only: Iterable[WorkloadId] | None = None) -> Iterator[StoredWorkload]:
        """Yield the jobs that have ever started, or `only` some of them."""
        begun = self._begun if only is None else self._begun.intersection(only)
        return (self._rows[workload] for workload in begun)

    def keyed(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return a user's workloads with this key; none for an empty key."""
        found = self._by_key.get((user, key), ()) if key else ()
        return [self._rows[workload].record for workload in found]

    def draw_ahead(self, now: float, rules: ElasticRules) -> Iterator[None]:
        """Build changed workloads until few are left; yield after each batch."""
        while len(self._to_draw) > DRAWN_AT_ONCE:
            some = [w for w in islice(self._to_draw, DRAWN_AT_ONCE) if w not in self._sized]
            if not some:
                break
            for workload in some:
                self._draw(workload, now, rules)
            self._to_draw.difference_update(some)
            yield

    def for_core(
        self, now: float, rules: ElasticRules, *, pressing: bool = False
    ) -> tuple[Workload, ...]:
        """Return the snapshot's workloads; unchanged ones are the same objects as before.

        Of a new array it adds a part, in order, and a smaller one if the cycle is urgent
        (`pressing`); while `coming` is true, the caller has to request another snapshot.
        """
        part = TAKEN_IN_BETWEEN if pressing else TAKEN_IN
        for user, coming in list(self._coming.items()):
            for name in list(islice(coming, part)):
                self._drawn[name] = coming.pop(name)
            if not coming:
                del self._coming[user]
        for workload in self._to_draw | self._sized:
            self._draw(workload, now, rules)
        self._to_draw.clear()
        return tuple(self._drawn.values())

    @property
    def coming(self) -> bool:
        """Return True if new workloads have not reached the scheduler yet."""
        return bool(self._coming)

    def _forget_coming(self, workload: WorkloadId, row: StoredWorkload) -> None:
        if coming := self._coming.get(row.spec.user):
            coming.pop(workload, None)
            if not coming:
                del self._coming[row.spec.user]

    def _draw(self, workload: WorkloadId, now: float, rules: ElasticRules) -> None:
        drawn = snapshot_builder.workload_for_core(self._rows[workload], now, rules)
        if drawn is None:
            self._drawn.pop(workload, None)
        elif drawn != self._drawn.get(workload):
            self._drawn[workload] = drawn

    def _note_end(self, row: StoredWorkload) -> None:
        if row.record.state.finished and row.record.finished is not None:
            self._finished.add(row.id, row.spec.user, row.record.finished)


def _is_unfinished(row: StoredWorkload | None) -> bool:
    return row is not None and row.spec.kind == "job" and not row.record.state.finished


def _key(spec: WorkloadSpec) -> tuple[str, str]:
    return spec.user, spec.key


def _keep(named: dict[WorkloadId, None], workload: WorkloadId, *, wanted: bool) -> None:
    if wanted:
        named[workload] = None
    else:
        named.pop(workload, None)
