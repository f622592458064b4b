"""The part of the wire contract about the past: allocated and utilized over a range.

Part of `schemas`, which hands it on.
"""

from datetime import datetime
from typing import Literal

from runai.hub_service.api.wire import Wire

__all__ = ["UsageKind", "UsageOf", "UsagePoint", "UsageSeries"]


class UsagePoint(Wire):
    """Averages over one step that ends at `at`, in GPUs; None: nothing was measured then."""

    at: datetime
    allocated: float | None
    utilized: float | None


class UsageSeries(Wire):
    """Allocation and utilization over a range, time-weighted, zeros included and gaps left out."""

    since: datetime
    until: datetime
    step_s: int
    capacity: float
    """GPUs in the cluster now."""
    points: list[UsagePoint]
    allocated_average: float | None
    utilized_average: float | None
    allocated_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    """Allocated and less than 1 % busy."""
    simulated: bool


UsageKind = Literal["project", "user", "node"]


class UsageOf(Wire):
    """What a project, a user or a node held and kept busy over a range; averages in GPUs."""

    name: str
    allocated_average: float | None
    utilized_average: float | None
    allocated_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
