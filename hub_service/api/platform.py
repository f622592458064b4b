"""What every handler works with: the parts of the running service, and who asks.

Handlers declare `On` (the platform) and `Caller` (the actor) and get them from here. Knows how to
gather a `World`; leaves what of it is shown to `views`. Made by the composition root.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request

from runai.hub_service.api.auth import Authenticator
from runai.hub_service.api.permissions import Action, Actor, authorise
from runai.hub_service.api.views import Viewer, World
from runai.hub_service.clusters.base import Cluster
from runai.hub_service.clusters.records import ProjectSpec, WorkloadId, WorkloadRecord
from runai.hub_service.controller import Controller
from runai.hub_service.ledger import Ledger

__all__ = ["Caller", "On", "Platform"]


@dataclass
class Platform:
    """The parts of the running service."""

    cluster: Cluster
    controller: Controller
    ledger: Ledger
    authenticator: Authenticator
    prefix: str
    """Path of the service's root, with a slash at both ends."""
    version: str
    workdir_exists: Callable[[str], bool]
    """Whether jobs could begin in a directory; always true where only their user could tell."""
    clock: Callable[[], float] = time.time
    _gathered: tuple[int, World] | None = None

    async def world(self) -> World:
        """Gather everything there is to show, now."""
        return World(
            at=self.clock(),
            workloads=await self.cluster.workloads(),
            projects={record.spec.name: record for record in await self.cluster.projects()},
            devices=await self.cluster.devices(),
            shares=self.controller.last.plan.projects,
            meter=self.ledger,
        )

    async def world_of_last_cycle(self) -> World:
        """Gather once per cycle, however many streams show it; measurements are always fresh."""
        version = self.controller.changes.version
        if self._gathered is None or self._gathered[0] != version:
            self._gathered = (version, await self.world())
        return replace(self._gathered[1], at=self.clock())

    async def viewer(self, actor: Actor) -> Viewer:
        """Return the present as the actor may see it."""
        return Viewer(await self.world(), actor)

    async def project_specs(self) -> dict[str, ProjectSpec]:
        """Return all projects by name."""
        return {record.spec.name: record.spec for record in await self.cluster.projects()}

    async def allowed(self, actor: Actor, action: Action, workload: WorkloadId) -> WorkloadRecord:
        """Return a workload to which the actor may do this.

        Raises:
            NotFound: there is none, or the actor may not know that there is.
            Forbidden: the actor may see it, but not do this.
        """
        record = await self.cluster.workload(workload)
        project = (await self.project_specs()).get(record.spec.project)
        authorise(actor, action, project, record.spec)
        return record


def _platform(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


async def _caller(request: Request) -> Actor:
    return await _platform(request).authenticator.actor(request)


On = Annotated[Platform, Depends(_platform)]
Caller = Annotated[Actor, Depends(_caller)]
