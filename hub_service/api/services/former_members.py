"""Former members: users with unfinished workloads in a project that they left.

Projects list members by name and groups of JupyterHub. The scheduler starts no workload of a former
member; routes refuse requests for more GPUs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn

from runai.hub_service.api.auth.permissions import Actor, is_member
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.snapshot import Snapshot
from runai.hub_service.wire.errors import NotFound, Unavailable

EVERY_S: Final = 30.0  # with the authenticator's cache: within a minute
GROUPS_WITHIN_S: Final = 1.0  # a cycle after a changed project waits so long for the hub


class FormerMembers:
    """The former members of each project, by name."""

    def __init__(
        self,
        cluster: Cluster,
        person: Callable[[str], Awaitable[Actor]],
        *,
        was_checked: Callable[[WorkloadSpec], bool] = lambda _spec: True,
    ) -> None:
        """Look users up by `person`; ignore workloads without a check of their submission."""
        self._cluster = cluster
        self._person = person
        self._was_checked = was_checked
        self._specs: list[ProjectSpec] = []
        self._groups: dict[str, frozenset[str]] = {}
        """Last known groups by user. A user whose groups are unknown counts as a member."""
        self.by_project: Mapping[str, tuple[str, ...]] = {}
        """Former members by project; projects without any are left out."""

    async def run(self) -> NoReturn:
        """Read owners and groups again every half minute, forever."""
        while True:
            await asyncio.sleep(EVERY_S)
            with suppress(Unavailable):
                await self.refresh()

    async def marked(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with each project's former members; refresh if a project changed."""
        specs = [record.spec for record in await self._cluster.projects()]
        if specs != self._specs:
            await self.refresh_quickly()
        if not self.by_project:
            return snapshot
        return replace(
            snapshot,
            projects=tuple(
                replace(project, former_members=self.by_project.get(project.name, ()))
                for project in snapshot.projects
            ),
        )

    async def refresh_quickly(self) -> None:
        """Refresh, but wait for the hub a second at most: a cycle or a request waits for this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUPS_WITHIN_S):
                await self.refresh()

    async def refresh(self) -> None:
        """Read projects, owners of unfinished workloads, and the groups that decide."""
        self._specs = [record.spec for record in await self._cluster.projects()]
        owners: dict[str, set[str]] = {}
        for record in await self._cluster.workloads():
            spec = record.spec
            if spec.user and not record.state.finished and self._was_checked(spec):
                owners.setdefault(spec.project, set()).add(spec.user)
        self._update(owners)
        undecided = {
            user
            for spec in self._specs
            if spec.groups or spec.admin_groups
            for user in owners.get(spec.name, ())
            if not is_member(Actor(user), spec)
        }
        await asyncio.gather(*map(self._read_groups, undecided))
        self._groups = {user: self._groups[user] for user in undecided & self._groups.keys()}
        self._update(owners)

    async def _read_groups(self, user: str) -> None:
        """Read a user's groups again; keep the last ones if the hub does not answer."""
        try:
            self._groups[user] = (await self._person(user)).groups
        except NotFound:
            self._groups[user] = frozenset()
        except Unavailable:
            return  # the last answer stands

    def _update(self, owners: Mapping[str, set[str]]) -> None:
        """Find the former members among the owners of unfinished workloads, by project."""
        former = {
            spec.name: tuple(
                sorted(u for u in owners.get(spec.name, ()) if self._has_left(u, spec))
            )
            for spec in self._specs
        }
        self.by_project = {project: users for project, users in former.items() if users}

    def _has_left(self, user: str, spec: ProjectSpec) -> bool:
        """Return True if a user is known to be no member any more."""
        groups = self._groups.get(user)
        if groups is None and (spec.groups or spec.admin_groups):
            return False
        return not is_member(Actor(user, groups=groups or frozenset()), spec)
