"""Projects of a cluster that stores rows, deleted together with their workloads.

Workloads refer to their project by name. So a new project of a deleted one's name must find no
workload of the old one.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from runai.hub_service.clusters.states.transition import Store, Transition
from runai.hub_service.clusters.workloads.workload_index import FORGOTTEN_AT_ONCE, WorkloadIndex
from runai.hub_service.model.cluster import ProjectChange
from runai.hub_service.model.project_tree_rules import check_deletion, check_parent
from runai.hub_service.model.records import ProjectRecord, WorkloadId
from runai.hub_service.wire.errors import NotFound

_DELETED_WITH_PROJECT: Final = Transition(None, aged=True)
"""A workload's results stay: no user has asked for their deletion."""


class StoredProjects:
    """All projects, oldest first; each change is stored before it is visible."""

    def __init__(
        self,
        store: Store,
        index: WorkloadIndex,
        *,
        clock: Callable[[], float],
        commit: Callable[[Mapping[WorkloadId, Transition]], None],
        announce: Callable[[], None],
    ) -> None:
        """Load the store's projects."""
        self._store, self._index = store, index
        self._clock, self._commit, self._announce = clock, commit, announce
        self._projects: dict[str, ProjectRecord] = {p.spec.name: p for p in store.projects()}

    def records(self) -> list[ProjectRecord]:
        """Return all projects, oldest first."""
        return list(self._projects.values())

    async def change(self, name: str, change: ProjectChange) -> ProjectRecord:
        """Replace a project by `change` of it, with no await between read and write."""
        previous = self._projects.get(name)
        spec = change(previous.spec if previous else None)
        check_parent(spec, [p.spec for p in self._projects.values()])
        record = ProjectRecord(spec, previous.created if previous else self._clock())
        if record != previous:
            self._store.save(projects=[record])
            self._projects[spec.name] = record
            self._announce()
        return record

    async def delete(self, name: str) -> None:
        """Delete a project without children or unfinished workloads, with its finished ones."""
        self._check_deletion(name)
        await self._delete_finished(name)
        self._check_deletion(name)  # other tasks ran meanwhile
        self._store.save(deleted_projects=[name])
        del self._projects[name]
        self._announce()

    def _check_deletion(self, name: str) -> None:
        """Raise NotFound, or Conflict for a project with children or unfinished workloads."""
        if name not in self._projects:
            raise NotFound(
                f"There is no project {name}.", hint="runai list projects names those there are."
            )
        specs = [p.spec for p in self._projects.values()]
        check_deletion(name, specs, self._index.unfinished(name))

    async def _delete_finished(self, name: str) -> None:
        """Delete a project's finished workloads.

        In small batches, so that other tasks do not wait for thousands of writes.
        """
        while finished := self._index.finished(name):
            for start in range(0, len(finished), FORGOTTEN_AT_ONCE):
                batch = finished[start : start + FORGOTTEN_AT_ONCE]
                # A workload deleted and submitted again meanwhile has another row.
                self._commit(
                    {
                        row.id: _DELETED_WITH_PROJECT
                        for row in batch
                        if self._index.row(row.id) is row
                    }
                )
                await asyncio.sleep(0)
