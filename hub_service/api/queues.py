"""The workloads of a world by project and by state, added up once for everybody who looks at it.

Pure. Thousands wait where tens run: an overview lists the first of each queue and counts the rest.
Made by `world`, read by `views`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not

from runai.hub_service.api.holders import Holders
from runai.hub_service.clusters.records import ProjectSpec, WorkloadRecord, WorkloadState

__all__ = ["RECENT", "WAITING", "LastQueues", "ProjectSums", "Queues", "place", "sums_of"]

RECENT = 100
"""Finished workloads in an overview; `workloads` lists all."""

WAITING = frozenset({WorkloadState.QUEUED, WorkloadState.PAUSED, WorkloadState.RETRYING})

_LAST = 1 << 62


class InOrder(Mapping[str, Sequence[WorkloadRecord]]):
    """Queues by their names, each put in order when it is looked at: of many, few are."""

    def __init__(
        self,
        records: Sequence[WorkloadRecord] = (),
        waiting: Mapping[str, AbstractSet[int]] | None = None,
        known: Mapping[str, Sequence[WorkloadRecord]] | None = None,
    ) -> None:
        """Of `records` those at the places in `waiting`, by names; some queues are `known`."""
        self._records = records
        self._waiting = waiting or {}
        self._known = dict(known or {})

    def __getitem__(self, name: str) -> Sequence[WorkloadRecord]:
        queue = self._known.get(name)
        if queue is None:
            queue = [self._records[n] for n in sorted(self._waiting[name])]
            queue.sort(key=place)
            self._known[name] = queue
        return queue

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def many(self) -> Iterator[tuple[str, int]]:
        """Yield how long each is, without a look at them."""
        return ((name, len(places)) for name, places in self._waiting.items())

    def without(self, touched: Iterable[str]) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Return those that are in order already, but for these."""
        known = dict(self._known)
        for name in touched:
            known.pop(name, None)
        return known


@dataclass(frozen=True)
class Queues:
    """Who is there and does not wait, and who waits, in the order of the queue."""

    present: Sequence[WorkloadRecord]
    """All but those that wait, and those that finished long ago; oldest first."""
    holding: Holders
    """The same object until one of them changes."""
    of_project: InOrder
    of_user: InOrder
    _records: Sequence[WorkloadRecord] = field(compare=False)
    _owners: Mapping[str, Sequence[int]] = field(compare=False)
    """Of each user the places in that list, and in longer ones that follow it."""

    def owned(self, user: str) -> list[WorkloadRecord]:
        """Return all of somebody's workloads; oldest first."""
        many, records = len(self._records), self._records
        return [records[n] for n in self._owners.get(user, ()) if n < many]

    @classmethod
    def of(cls, workloads: Sequence[WorkloadRecord]) -> "Queues":
        """Put them in order."""
        return LastQueues().of(workloads)


class LastQueues:
    """The queues of those records that were asked about last: many look between two changes.

    Thousands wait and a few change: what has not changed stays where it is.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._begin()

    def _begin(self) -> None:
        self._records: Sequence[WorkloadRecord] = ()
        # Places in that list.
        self._others: set[int] = set()
        self._holding: set[int] = set()
        self._projects = _Waiting()
        self._users = _Waiting()
        self._owners: defaultdict[str, list[int]] = defaultdict(list)
        self._queues = Queues((), Holders(), InOrder(), InOrder(), (), {})

    def of(self, records: Sequence[WorkloadRecord]) -> Queues:
        """Put them in order."""
        if records is not self._records:
            before = self._records
            changed = list(compress(range(len(before)), map(is_not, before, records)))
            if len(records) < len(before) or any(
                before[n].spec.user != records[n].spec.user for n in changed
            ):
                self._begin()  # whoever came after what is gone is elsewhere now
                changed = []
            self._follow(records, [*changed, *range(len(self._records), len(records))])
        return self._queues

    def _follow(self, records: Sequence[WorkloadRecord], changed: list[int]) -> None:
        before, self._records, last = self._records, records, self._queues
        holding: Holders | None = last.holding
        for n in changed:
            if n < len(before) and before[n].state in WAITING:
                self._projects.discard(before[n].spec.project, n)
                self._users.discard(before[n].spec.user, n)
            record, spec = records[n], records[n].spec
            if n >= len(before):
                self._owners[spec.user].append(n)
            if record.state in WAITING:
                self._others.discard(n)
                self._projects.add(spec.project, n)
                self._users.add(spec.user, n)
            else:
                self._others.add(n)
            if record.holds_devices:
                self._holding.add(n)
                holding = None
            elif n in self._holding:
                self._holding.remove(n)
                holding = None
        self._queues = Queues(
            self._present(),
            holding or Holders(tuple([records[n] for n in sorted(self._holding)])),
            self._projects.of(records, last.of_project),
            self._users.of(records, last.of_user),
            records,
            self._owners,
        )

    def _present(self) -> list[WorkloadRecord]:
        there = [self._records[n] for n in sorted(self._others)]
        long_ago = sum(record.state.finished for record in there) - RECENT
        present = []
        for record in there:
            if record.state.finished and long_ago > 0:
                long_ago -= 1
            else:
                present.append(record)
        return present


class _Waiting:
    """The places of those that wait, by a name; what was given away stays as it was."""

    def __init__(self) -> None:
        self._places: dict[str, AbstractSet[int]] = {}
        self._touched: dict[str, set[int]] = {}

    def add(self, name: str, n: int) -> None:
        self._own(name).add(n)

    def discard(self, name: str, n: int) -> None:
        self._own(name).discard(n)

    def of(self, records: Sequence[WorkloadRecord], before: InOrder) -> InOrder:
        """Return the queues of these records; those that nobody touched are as they were."""
        touched, self._touched = self._touched, {}
        places = self._places | touched
        self._places = {name: found for name, found in places.items() if found}
        return InOrder(records, self._places, before.without(touched))

    def _own(self, name: str) -> set[int]:
        own = self._touched.get(name)
        if own is None:
            own = self._touched[name] = set(self._places.get(name, ()))
        return own


def place(record: WorkloadRecord) -> int:
    """Return a record's place in its queue; who has none yet comes last."""
    return _LAST if record.position is None else record.position


@dataclass
class ProjectSums:
    """What a project's workloads come to, those of its children included; milli-GPU."""

    allocated: int = 0
    building: int = 0
    waiting: int = 0
    utilized: float | None = None
    """GPUs kept busy; None: nothing was measured."""


def sums_of(
    queues: Queues, projects: Mapping[str, ProjectSpec], busy: Mapping[str, float]
) -> Mapping[str, ProjectSums]:
    """Add up each project; `busy` are the GPUs that each one's own workloads keep so."""
    found = {name: ProjectSums() for name in projects}

    def above(project: str) -> Iterator[ProjectSums]:
        name: str | None = project
        while name is not None and name in found:
            yield found[name]
            name = projects[name].parent

    for project, many in queues.of_project.many():
        for sums in above(project):
            sums.waiting += many
    for project, (allocated, building) in queues.holding.allocated.items():
        for sums in above(project):
            sums.allocated += allocated
            sums.building += building
    for project, now in busy.items():
        for sums in above(project):
            sums.utilized = (sums.utilized or 0.0) + now
    return found
