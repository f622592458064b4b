"""What a cluster shows of a workload: to the core, and in its history."""

from __future__ import annotations

from typing import Any

from labs import Lab


async def seen(lab: Lab, workload: str) -> Any:
    """Return a workload as the next snapshot draws it; None when it is left out."""
    snapshot = await lab.cluster.observe()
    return {drawn.name: drawn for drawn in snapshot.workloads}.get(workload)


async def kinds(lab: Lab, workload: str) -> list[str]:
    """Return what happened to a workload, oldest first."""
    return [line.kind for line in await lab.cluster.history(workload)]
