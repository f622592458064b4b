"""Completion of `runai user forget` in the hub, for the Unix accounts of `--system-users`.

What the person has is ended as at a removal, and deleted with the memberships. Nothing in a home is
touched. The name is in use again a minute later: the service may know a revoked token for so long.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import httpx
from jupyterhub.app import JupyterHub

from runai.embedded.accounts.account_removal import (
    LATE_JOBS_S,
    RETRY_INTERVAL_S,
    AccountRemoval,
    RemovalPending,
)
from runai.embedded.accounts.accounts import Removal
from runai.hub_service.model.admin_files import read_projects
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError


class ForgottenAccounts:
    """The names that are to be forgotten, as removals."""

    def __init__(self, known_accounts: KnownAccounts) -> None:
        self._known_accounts = known_accounts

    def pending_removals(self) -> Mapping[str, Removal]:
        """Return the incomplete removals by name."""
        return {name: Removal("") for name in self._known_accounts.being_forgotten()}

    def record_completed(self, name: str, removal: Removal) -> None:
        """Forget the name: from now on it is a new person's."""
        del removal
        self._known_accounts.forget(name)

    def is_back(self, name: str) -> bool:
        """Return True if the name can be used again."""
        return not self._known_accounts.is_being_forgotten(name)


class AccountForgetting(AccountRemoval):
    """The persons that are being forgotten."""

    files_naming: Callable[[str], Iterable[str]] = staticmethod(lambda _name: ())
    """Returns where the admin's files still name a user."""

    async def _complete(self, name: str, removal: Removal) -> None:
        """Complete one removal, with the person's workloads and memberships."""
        user = f"users/{quote(name, safe='')}"
        places = list(self.files_naming(name))
        try:
            await self._revoke_tokens(user)
            with suppress(RunaiError):
                await self._delete_workloads(name)  # before servers, which may stop slowly
            await self._delete_user(user)
            await self._service.end_memberships(name)
            await self._delete_late_workloads(name)
            self._accounts.record_completed(name, removal)
        except (RemovalPending, RunaiError, httpx.HTTPError, OSError) as wrong:
            self._warn_once(name, "User %s cannot be forgotten yet: %s", name, wrong)
            return
        self._warned_about.discard(name)
        self._log.info(
            "User %s was forgotten: tokens, servers, jobs, hub user and memberships are gone;"
            " homes, history and usage stay.",
            name,
        )
        for place in places:
            self._log.warning("%s is still %s: a new person of that name, too.", name, place)

    async def _delete_late_workloads(self, name: str) -> None:
        """Delete what comes in with a token that the service still knows.

        Raises:
            RemovalPending: a workload does not end.
        """
        remaining, until = [""], self._clock() + LATE_JOBS_S
        while self._clock() < until:
            remaining = await self._delete_workloads(name)
            await self._sleep(RETRY_INTERVAL_S)
        if remaining:
            raise RemovalPending(f"{', '.join(remaining)} still runs")

    async def _delete_workloads(self, name: str) -> list[str]:
        """Delete the user's workloads; return the remaining ones."""
        ids = [workload.id for workload in await self._service.workloads(user=name)]
        for workload_id in ids:
            with suppress(Conflict, NotFound):  # it ended meanwhile
                await self._service.delete(workload_id)
        return ids


def files_naming(name: str, hub: JupyterHub, projects: Path | None) -> Iterator[str]:
    """Yield where `projects.yaml` and `jupyterhub_config.py` name a user.

    These are applied at each start.
    """
    with suppress(RunaiError):
        for spec in read_projects(projects) if projects is not None else ():
            for what, names in (("a member", spec.members), ("an admin", spec.admins)):
                if name in names:
                    yield f"{what} of {spec.name} in {projects}"
    for group, content in hub.load_groups.items():
        if name in (content if isinstance(content, list) else content.get("users", ())):
            yield f"in the group {group} of c.JupyterHub.load_groups"
    for role in hub.load_roles:
        if name in role.get("users", ()):
            yield f"in the role {role['name']} of c.JupyterHub.load_roles"
    for setting in ("admin_users", "allowed_users"):
        if name in getattr(hub.authenticator, setting):
            yield f"in {setting} of the authenticator"
