"""Projects on the API server: list, create, change, delete.

With pools, only the pool's own projects; project names are unique in the whole cluster.
"""

from collections.abc import Awaitable, Callable, Sequence

from runai.hub_service.clusters.kubernetes.client.api import (
    Api,
    ApiError,
    Object,
    translate_api_errors,
)
from runai.hub_service.clusters.kubernetes.informers.informer import Informer
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.model.cluster import ProjectChange
from runai.hub_service.model.project_tree_rules import check_deletion, check_parent
from runai.hub_service.model.records import ProjectRecord, ProjectSpec, WorkloadRecord
from runai.hub_service.wire.errors import Conflict, NotFound

TRIES = 10


class ProjectStore:
    """Projects as custom resources."""

    def __init__(
        self,
        api: Api,
        informer: Informer[ProjectRecord],
        pool: NodePool,
        workloads: Callable[[], Awaitable[Sequence[WorkloadRecord]]],
    ) -> None:
        """Manage the projects of `pool`; `workloads` returns all workloads."""
        self._api = api
        self._projects = informer
        self._pool = pool
        self._workloads = workloads

    async def projects(self) -> Sequence[ProjectRecord]:
        """Return all projects, oldest first."""
        await self._projects.listed()
        found = self._projects.objects.values()
        return sorted(found, key=lambda record: (record.created, record.spec.name))

    async def put_project(self, spec: ProjectSpec) -> ProjectRecord:
        """Create or change a project; the next cycle uses it."""
        return await self.change_project(spec.name, lambda _known: spec)

    async def change_project(self, name: str, change: ProjectChange) -> ProjectRecord:
        """Apply `change` to the API server's current version of a project; return the result.

        The write succeeds only if that version is still current. Status updates also create
        versions, once a cycle if the status changes: then `change` is applied again, up to 10
        times.
        """
        existing = [record.spec for record in await self.projects()]
        for _ in range(TRIES):
            with translate_api_errors():
                found = await self._read(name)
                spec = change(None if found is None else project_objects.read_project(found).spec)
                check_parent(spec, existing)
                try:
                    written = await self._write(spec, found)
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise
                    continue  # created, changed or deleted meanwhile
            self._projects.apply(written)
            return project_objects.read_project(written)
        raise Conflict(
            f"Project {name} is changed by others at the same time.",
            hint="Look at it, and try again.",
            code="changed_meanwhile",
        )

    async def _read(self, name: str) -> Object | None:
        """Return the current version of a project, or None.

        It is a list request: we have no right to `get`.

        Raises:
            Conflict: the project belongs to another pool.
        """
        listed = await self._api.get(
            project_objects.PROJECTS, fieldSelector=f"metadata.name={name}"
        )
        found: Object | None = next(iter(listed["items"]), None)
        if found is not None and not self._pool.has(found):
            raise Conflict(
                f"There is a project {name} already, of another pool of nodes.",
                hint="Choose another name: names of projects are the whole cluster's.",
                code="name_taken",
            )
        return found

    async def _write(self, spec: ProjectSpec, over: Object | None) -> Object:
        if over is None:
            body = self._pool.with_labels(project_objects.manifest(spec))
            return await self._api.create(project_objects.PROJECTS, body)
        path = f"{project_objects.PROJECTS}/{spec.name}"
        return await self._api.patch(path, project_objects.change(spec, over))

    async def delete_project(self, name: str) -> None:
        """Delete a project that has neither children nor workloads.

        Finished workloads are not deleted with it: Jobs may belong to other users of the cluster.
        """
        specs = [record.spec for record in await self.projects()]
        if name not in {spec.name for spec in specs}:
            raise NotFound(
                f"There is no project {name}.", hint="runai list projects names those there are."
            )
        its = [record for record in await self._workloads() if record.spec.project == name]
        finished = [record.id for record in its if record.state.finished]
        unfinished = [record.id for record in its if not record.state.finished]
        check_deletion(name, specs, unfinished, finished)
        with translate_api_errors():
            found = await self._api.delete(f"{project_objects.PROJECTS}/{name}")
        self._projects.drop(name, found["details"]["uid"])
