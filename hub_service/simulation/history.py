"""The platform's own past as a trace: what ran, on which nodes, under which quotas.

Turns what the API says into rows, nodes and projects. A duration is the time for which a workload
held GPUs, so a job that still runs counts with what it has done. Knows no HTTP; called by the
command, which asks the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from runai.hub_service.api.schemas import NodeView, PastWorkload, ProjectView
from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.errors import InvalidRequest
from runai.hub_service.scheduler.model import Node
from runai.hub_service.scheduler.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.simulation.traces import TraceRow

__all__ = ["nodes_of", "rows_of", "seconds_of", "specs_of"]

RESUME_S: Final = 60
"""What a pause is taken to cost a job: to save, to start, and to read its checkpoint."""

_UNITS: Final = {"m": 60, "h": 3600, "d": 86400}
_LENGTH: Final = re.compile(r"^(\d{1,5})([mhd])$")


def seconds_of(length: str) -> int:
    """Read a length of time.

    >>> seconds_of("30d"), seconds_of("12h")
    (2592000, 43200)

    Raises:
        InvalidRequest: it is none.
    """
    found = _LENGTH.match(length)
    if found is None or not int(found[1]):
        raise InvalidRequest(f"{length!r} is no length of time.", hint="Write 30d, 12h or 90m.")
    return int(found[1]) * _UNITS[found[2]]


def rows_of(past: Iterable[PastWorkload]) -> list[TraceRow]:
    """Make a trace of what ran, in order of submission."""
    rows: list[TraceRow] = []
    seen: dict[str, int] = {}
    for workload in past:
        seen[workload.id] = again = seen.get(workload.id, 0) + 1
        rows.append(
            TraceRow(
                job=workload.id if again == 1 else f"{workload.id}:{again}",
                project=workload.project,
                submit_s=int(workload.submitted.timestamp()),
                gpus=_milli(workload.gpus),
                duration_s=max(1, round(workload.held_s)),
                kind=workload.kind,
                user=workload.user,
                checkpoint_cost_s=RESUME_S,
            )
        )
    return sorted(rows, key=lambda row: (row.submit_s, row.job))


def _milli(gpus: float) -> int:
    """Take an average of what was held for the request that it came from."""
    if gpus < 1:
        return max(1, round(gpus * WHOLE_GPU))
    return WHOLE_GPU * round(gpus)


def nodes_of(views: Iterable[NodeView]) -> list[Node]:
    """Draw the cluster's nodes for the core."""
    return [
        Node(
            name=view.name,
            devices=len(view.devices),
            device_memory_mib=Mib(min((d.memory_mib for d in view.devices), default=0)),
            gpu_type=view.devices[0].name if view.devices else "",
        )
        for view in views
    ]


def specs_of(views: Iterable[ProjectView]) -> list[ProjectSpec]:
    """Give the projects as they are set now, members left out."""
    return [
        ProjectSpec(
            name=view.name,
            parent=view.parent,
            quota=_bound(view.quota),
            # What only follows from the quota goes on to follow from it when that is changed.
            build_quota=None if view.build_quota == view.quota else _bound(view.build_quota),
            limit=_bound(view.limit),
            weight=view.weight,
            priority=view.priority,
            never_lent=_bound(view.never_lent) or MilliGpu(0),
            min_runtime=view.min_runtime,
        )
        for view in views
    ]


def _bound(gpus: float | None) -> MilliGpu | None:
    return None if gpus is None else MilliGpu(int(Decimal(str(gpus)) * WHOLE_GPU))
