"""Log of changed and removed workloads, from which readers catch up."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile

from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import WorkloadId, WorkloadRecord

MAX_REMOVALS = 10_000
"""Removals that are kept; readers that missed more read all workloads anew."""


class ChangeLog:
    """The last change of each existing workload, and the last removals."""

    def __init__(self, max_removals: int = MAX_REMOVALS) -> None:
        """Start empty, at version 0."""
        self.version = 0
        self._changes = OrderedDict[WorkloadId, int]()
        """Version of each workload's last change, ascending."""
        self._removals = deque[tuple[WorkloadId, int]](maxlen=max_removals)
        """Removed workloads and the versions of their removal, ascending."""
        self._complete_from = 0
        """Version from which all removals are kept."""

    def add_change(self, workload: WorkloadId) -> None:
        """Log that a workload is new or has changed."""
        self.version += 1
        self._changes[workload] = self.version
        self._changes.move_to_end(workload)

    def add_removal(self, workload: WorkloadId) -> None:
        """Log that a workload was removed."""
        self.version += 1
        self._changes.pop(workload, None)
        if len(self._removals) == self._removals.maxlen:
            self._complete_from = self._removals[0][1]
        self._removals.append((workload, self.version))

    def since(
        self,
        version: int | None,
        rows: Mapping[WorkloadId, WorkloadRecord],
        age: Callable[[WorkloadId], int | tuple[object, ...]],
    ) -> WorkloadChanges:
        """Return the changes since a version, or all rows; `rows` are ordered by `age`."""
        if version is None or not self._complete_from <= version <= self.version:
            return WorkloadChanges(self.version, list(rows.values()), is_all=True)
        changed = sorted(_after(version, reversed(self._changes.items())), key=age)
        removed = dict.fromkeys(_after(version, reversed(self._removals)))
        return WorkloadChanges(self.version, [rows[name] for name in changed], list(removed))


def _after(version: int, latest_first: Iterable[tuple[WorkloadId, int]]) -> Iterator[WorkloadId]:
    """Yield the workloads that are later than a version."""
    return (name for name, _ in takewhile(lambda entry: entry[1] > version, latest_first))
