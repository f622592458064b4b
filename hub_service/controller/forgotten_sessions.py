"""End sessions whose server the hub has forgotten, so that no allocation outlives its notebook.

The cluster sees a dead process by itself; this covers what it cannot see: a hub that lost its
database, a server deleted while the service was away. Asks the hub now and then; ends a session
only after two answers in a row without its server. Owned by the composition root.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.errors import NotFound, Unavailable

LOG = logging.getLogger("runai.sessions")

EVERY_S = 60.0
TIMES = 2
"""A server that is being started or stopped may be missing from one answer."""

Servers = Mapping[str, Mapping[str, Any]]


class ForgottenSessions:
    """Compare the cluster's sessions with the hub's servers."""

    def __init__(self, cluster: Cluster, servers: Callable[[], Awaitable[Servers]]) -> None:
        """Look at `cluster`; `servers` asks the hub for the active ones, by user and name."""
        self._cluster = cluster
        self._servers = servers
        self._missing: dict[WorkloadId, int] = {}

    async def run(self) -> NoReturn:
        """Check at once and every minute, for ever."""
        while True:
            try:
                await self.check()
            except Unavailable:
                LOG.warning("the hub is not answering: sessions are not checked now")
            await asyncio.sleep(EVERY_S)

    async def check(self) -> None:
        """Ask once; end those that were missing the last time too.

        Raises:
            Unavailable: the hub cannot be asked; nothing was ended.
        """
        # Sessions first: one that is submitted while the hub answers is not looked for.
        sessions = [
            record
            for record in await self._cluster.workloads()
            if record.spec.kind == "session"
            and record.spec.command is None
            and not record.state.finished
        ]
        servers = await self._servers()
        missing = {
            record.id: self._missing.get(record.id, 0) + 1
            for record in sessions
            if record.spec.server not in servers.get(record.spec.user, {})
        }
        for workload, times in list(missing.items()):
            if times < TIMES:
                continue
            LOG.warning("%s is ended: the hub has no such server", workload)
            del missing[workload]
            try:
                await self._cluster.delete(workload, by="the hub")
            except NotFound:
                continue
        self._missing = missing
