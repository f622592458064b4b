"""Recent usage of projects for the scheduler, if the policy counts it (S5).

A project's usage is its average allocation; an hour a week ago counts half as much as one now. It
is read from the ledger periodically, and cycles use the cached result.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from runai.hub_service.ledger import Ledger, Usage, UsageFilter
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Snapshot
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.usage_history")

HOUR_S = 3600
HALF_LIFE_S = 7 * 24 * HOUR_S
REACHES_BACK_S = 4 * HALF_LIFE_S
"""Older usage would count for less than a sixteenth."""

READ_EVERY_S = 600.0
RETRY_AFTER_S = 10.0


class UsageHistory:
    """Cached recent usage of each project."""

    def __init__(
        self, cluster: Cluster, ledger: Ledger, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._clock = clock
        self._usage: dict[str, MilliGpu] = {}
        self._is_read = False

    async def run(self) -> NoReturn:
        """Read the usage every ten minutes, forever; retry sooner after a failure."""
        while True:
            await asyncio.sleep(READ_EVERY_S if self._is_read else RETRY_AFTER_S)
            await self.begin()

    async def begin(self) -> None:
        """Read the usage if possible; until then, scheduling continues without it."""
        try:
            await self.read()
            self._is_read = True
        except Unavailable as away:
            self._is_read = False
            LOG.warning("recent usage could not be read, keeping the previous one: %s", away.code)

    async def read(self) -> None:
        """Read the usage of every project."""
        now = self._clock()
        usage: dict[str, MilliGpu] = {}
        for record in await self._cluster.projects():
            usage_filter = UsageFilter(project=record.spec.name)
            found = await self._ledger.usage(usage_filter, now - REACHES_BACK_S, now, HOUR_S)
            usage[record.spec.name] = decayed(found, now)
        self._usage = usage

    def with_usage(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the projects' usage; a parent's is the sum of its children's."""
        parents = {project.parent for project in snapshot.projects}
        return replace(
            snapshot,
            projects=tuple(
                project
                if project.name in parents
                else replace(project, usage=self._usage.get(project.name, MilliGpu(0)))
                for project in snapshot.projects
            ),
        )


def decayed(usage: Usage, now: float) -> MilliGpu:
    """Return the average allocation in milli-GPU; unrecorded time counts as zero."""
    allocated = weights = 0.0
    for point in usage.points:
        weight = 0.5 ** ((now - point.at) / HALF_LIFE_S)
        weights += weight
        allocated += weight * (point.allocated or 0.0)
    return MilliGpu(round(1000 * allocated / weights)) if weights else MilliGpu(0)
