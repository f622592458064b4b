"""Cleanup of sessions that the hub has forgotten, to free their GPUs.

The cluster notices dead processes itself. This covers a hub that lost its database, and servers
deleted while the service was down. A session ends after two consecutive hub responses without its
server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.errors import Conflict, NotFound, Unavailable

LOG = logging.getLogger("runai.sessions")

CHECK_EVERY_S = 60.0
MIN_MISSES = 2
"""Required responses without the server: one may miss a server that is starting or stopping."""

Servers = Mapping[str, Mapping[str, Any]]


class ForgottenSessions:
    """Comparison of the cluster's sessions with the hub's servers."""

    def __init__(self, cluster: Cluster, servers: Callable[[], Awaitable[Servers]]) -> None:
        """Check the sessions of `cluster`; `servers` fetches active servers by user and name."""
        self._cluster = cluster
        self._servers = servers
        self._miss_counts: dict[tuple[WorkloadId, str], int] = {}

    async def run(self) -> NoReturn:
        """Check at once and then every minute, forever."""
        while True:
            try:
                await self.check()
            except Unavailable:
                LOG.warning("the hub does not respond: sessions are not checked now")
            await asyncio.sleep(CHECK_EVERY_S)

    async def check(self) -> None:
        """Fetch the servers once; end sessions that were missing in the previous check too.

        Raises:
            Unavailable: the hub does not respond; no session was ended.
        """
        # List sessions first: one submitted during the request to the hub must not count as
        # missing.
        sessions = [
            record
            for record in await self._cluster.workloads()
            if record.spec.kind == "session"
            and record.spec.command is None
            and not record.state.finished
        ]
        servers = await self._servers()
        miss_counts = {
            (record.id, record.uid): self._miss_counts.get((record.id, record.uid), 0) + 1
            for record in sessions
            if record.spec.server not in servers.get(record.spec.user, {})
        }
        for (workload, uid), misses in list(miss_counts.items()):
            if misses < MIN_MISSES:
                continue
            LOG.warning("ending session %s: the hub has no server for it", workload)
            del miss_counts[workload, uid]
            try:
                await self._cluster.delete(workload, by="the hub", uid=uid)
            except (NotFound, Conflict):
                continue
        self._miss_counts = miss_counts
