"""Completion of `runai user remove` and `runai user forget` in the hub.

Tokens are revoked first, then jobs are suspended, servers stopped and JupyterHub's user deleted,
by the REST calls of its admin page. The next round retries a failure, also after a restart.
"""

import asyncio
import logging
import time
from asyncio import Task
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, Protocol
from urllib.parse import quote

import httpx

from runai.embedded.accounts.accounts import Removal
from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError

REMOVAL_SCOPES = ("read:users:name", "read:servers", "delete:servers", "delete:users", "tokens")
"""Scopes of the token that removals use."""
RETRY_INTERVAL_S = 5.0
LATE_JOBS_S = 60.0
"""Time in which jobs may arrive after a removal. The service caches the hub's answers for 30 s."""
_AT_REST = frozenset({"suspended", "succeeded", "failed", "ended", "timed_out"})


class RemovalPending(Exception):
    """Error: the hub refuses a call, for example while a server is stopping."""


class RemovalSource(Protocol):
    """Removals that admins ask for."""

    def pending_removals(self) -> Mapping[str, Removal]:
        """Return the incomplete removals by name."""

    def record_completed(self, name: str, removal: Removal) -> None:
        """Record that one is complete."""

    def is_back(self, name: str) -> bool:
        """Return True if the name is in use again."""


class AccountRemoval:
    """The removals in progress."""

    def __init__(
        self,
        accounts: RemovalSource,
        hub: httpx.AsyncClient,
        service: AsyncClient,
        log: logging.Logger | logging.LoggerAdapter[Any],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use the hub's REST API with `REMOVAL_SCOPES`, and the service's with the hub's token."""
        self._accounts = accounts
        self._hub = hub
        self._service = service
        self._log = log
        self._sleep = sleep
        self._clock = clock
        self._tasks: dict[tuple[str, Removal], Task[None]] = {}
        self._warned_about: set[str] = set()

    async def run(self) -> NoReturn:
        """Start each removal within 5 s, and retry failed ones; run forever."""
        while True:
            try:
                removals = self._accounts.pending_removals()
            except (RunaiError, OSError) as damaged:
                removals = {}
                self._warn_once("", "Removed accounts cannot be read: %s", damaged)
            for named_removal in removals.items():
                if named_removal not in self._tasks or self._tasks[named_removal].done():
                    self._tasks[named_removal] = asyncio.create_task(self._complete(*named_removal))
            await self._sleep(RETRY_INTERVAL_S)

    async def _complete(self, name: str, removal: Removal) -> None:
        """Complete one removal; then suspend late jobs for a minute."""
        user = f"users/{quote(name, safe='')}"
        try:
            await self._revoke_tokens(user)
            with suppress(RunaiError):
                await self._suspend_jobs(name)  # before servers, which may stop slowly
            await self._delete_user(user)
            await self._suspend_jobs(name)
            await asyncio.to_thread(self._accounts.record_completed, name, removal)
        except (RemovalPending, RunaiError, httpx.HTTPError, OSError) as wrong:
            self._warn_once(
                name, "What removed user %s has open cannot be ended yet: %s", name, wrong
            )
            return
        self._warned_about.discard(name)
        self._log.info(
            "User %s was removed: tokens, servers and hub user are gone, jobs are suspended.", name
        )
        until = self._clock() + LATE_JOBS_S
        while self._clock() < until:
            with suppress(RunaiError):
                if self._accounts.is_back(name):
                    return
                await self._suspend_jobs(name)
            await self._sleep(RETRY_INTERVAL_S)

    async def _revoke_tokens(self, user: str) -> None:
        _, tokens = await self._request("GET", f"{user}/tokens")
        for token in tokens.get("api_tokens", ()):
            await self._request("DELETE", f"{user}/tokens/{token['id']}")

    async def _delete_user(self, user: str) -> None:
        _, hub_user = await self._request("GET", user)
        for server in hub_user.get("servers", ()):
            path = f"servers/{quote(server, safe='')}" if server else "server"
            status, _ = await self._request("DELETE", f"{user}/{path}")
            if status == httpx.codes.ACCEPTED:
                raise RemovalPending("a server is still stopping")
        await self._request("DELETE", user)

    async def _suspend_jobs(self, name: str) -> None:
        """Suspend the user's jobs; delete sessions without a server."""
        active = [
            workload
            for workload in await self._service.workloads(user=name)
            if workload.state not in _AT_REST
        ]
        for workload in active:
            try:
                if workload.kind == "session":
                    await self._service.delete(workload.id)
                else:
                    await self._service.suspend(workload.id)
            except (Conflict, NotFound):
                continue  # it ended meanwhile

    async def _request(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of the hub's answer; {} on 404.

        Raises:
            RemovalPending: the hub refuses.
        """
        reply = await self._hub.request(method, path)
        if reply.status_code == httpx.codes.NOT_FOUND:
            return reply.status_code, {}
        if not reply.is_success:
            raise RemovalPending(f"{method} {path} is answered {reply.status_code}")
        return reply.status_code, reply.json() if reply.content else {}

    def _warn_once(self, subject: str, text: str, *values: object) -> None:
        if subject not in self._warned_about:
            self._warned_about.add(subject)
            self._log.warning(f"{text} (tried again every {RETRY_INTERVAL_S:.0f} s)", *values)
