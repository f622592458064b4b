"""A local cluster with the controller's decision loop, without a service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from runai.hub_service.clusters.local.local_cluster import LocalCluster
from runai.hub_service.scheduler import decide


@contextlib.asynccontextmanager
async def decision_loop(cluster: LocalCluster) -> AsyncGenerator[None]:
    """Run a decision after every change until the end of the test."""
    control = asyncio.ensure_future(_control(cluster))
    try:
        yield
    finally:
        control.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await control


async def _control(cluster: LocalCluster) -> None:
    while True:
        await cluster.apply(decide(await cluster.observe()))
        await cluster.changed()
