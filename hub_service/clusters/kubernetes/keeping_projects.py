"""Projects as people make, change and delete them, on the API server.

Of a pool's projects, where there are pools: names are the whole cluster's. Part of `cluster`.
"""

from collections.abc import Sequence

from runai.hub_service.clusters.kubernetes import projects as project_objects
from runai.hub_service.clusters.kubernetes.api import ApiError
from runai.hub_service.clusters.kubernetes.asking import asking
from runai.hub_service.clusters.kubernetes.submitted import Submitted
from runai.hub_service.clusters.project_tree import check_deletion, check_parent
from runai.hub_service.clusters.records import ProjectRecord, ProjectSpec
from runai.hub_service.errors import Conflict, NotFound

__all__ = ["KeptProjects"]


class KeptProjects(Submitted):
    """A cluster whose projects are custom resources."""

    async def projects(self) -> Sequence[ProjectRecord]:
        """Return all projects, oldest first."""
        await self._projects.listed()
        found = self._projects.objects.values()
        return sorted(found, key=lambda record: (record.created, record.spec.name))

    async def put_project(self, spec: ProjectSpec) -> ProjectRecord:
        """Create or change a project; the next cycle uses it."""
        check_parent(spec, [record.spec for record in await self.projects()])
        path = f"{project_objects.PROJECTS}/{spec.name}"
        with asking():
            try:
                body = self._pool.put_in(project_objects.manifest(spec))
                found = await self._api.create(project_objects.PROJECTS, body)
            except ApiError as error:
                if error.status != 409:
                    raise
                if await self._is_of_another_pool(spec.name):
                    raise Conflict(
                        f"There is a project {spec.name} already, of another pool of nodes.",
                        hint="Choose another name: names of projects are the whole cluster's.",
                        code="name_taken",
                    ) from error
                found = await self._api.patch(path, project_objects.change(spec))
        self._projects.take(found)
        return project_objects.read_project(found)

    async def delete_project(self, name: str) -> None:
        """Forget a project that has neither children nor workloads.

        Finished ones do not go with it: Jobs are the cluster's, and may be somebody else's objects.
        """
        specs = [record.spec for record in await self.projects()]
        if name not in {spec.name for spec in specs}:
            raise NotFound(
                f"There is no project {name}.", hint="runai list projects names those there are."
            )
        its = [record for record in await self.workloads() if record.spec.project == name]
        finished = [record.id for record in its if record.state.finished]
        unfinished = [record.id for record in its if not record.state.finished]
        check_deletion(name, specs, unfinished, finished)
        with asking():
            found = await self._api.delete(f"{project_objects.PROJECTS}/{name}")
        self._projects.drop(name, found["details"]["uid"])

    async def _is_of_another_pool(self, name: str) -> bool:
        """Tell whether a project is not ours to change; asked for as a list, which we may read."""
        named = f"metadata.name={name}"
        found = await self._api.get(project_objects.PROJECTS, fieldSelector=named)
        return not all(map(self._pool.has, found["items"]))
