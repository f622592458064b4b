"""A workload as a cluster shows it: in the scheduler's snapshot, and in its history."""

from __future__ import annotations

from typing import Any

from labs import Lab


async def observed_workload(lab: Lab, workload: str) -> Any:
    """Return a workload from the next snapshot; None if the snapshot leaves it out."""
    snapshot = await lab.cluster.observe()
    return {
        snapshot_workload.name: snapshot_workload for snapshot_workload in snapshot.workloads
    }.get(workload)


async def event_kinds(lab: Lab, workload: str) -> list[str]:
    """Return the kinds of a workload's events, oldest first."""
    return [line.kind for line in await lab.cluster.history(workload)]
