"""The part of the wire contract about the past: allocated and utilized over a range.

Part of `schemas`, which hands it on.
"""

from datetime import datetime
from typing import Literal

from runai.hub_service.wire.base_schema import Wire

MOSTLY = 0.9
"""Measured less than this, averages say so. Reports are seconds behind: never is it all of it."""


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
    measured: float | None = None
    """The part of the time in which anything was held that was measured; None: nothing was."""
    simulated: bool

    def utilized_beside_allocated(self) -> float | None:
        """Return what was utilized over the very time that `allocated_average` is over.

        `utilized_average` leaves out what was not measured. Here that counts as not used, so that
        both can stand side by side: they are to each other as the GPU-hours are.
        """
        if self.allocated_average is None or self.utilized_average is None:
            return None
        if not self.allocated_gpu_hours:
            return 0.0
        return self.allocated_average * self.used_gpu_hours / self.allocated_gpu_hours

    def caveats(self) -> list[str]:
        """Say what one must know to read `utilized_beside_allocated`; mostly nothing."""
        said = []
        if self.measured is not None and self.measured < MOSTLY:
            said.append(
                f"Measured {100 * self.measured:.0f} % of the time that GPUs were held;"
                " the rest counts as not used."
            )
        if self.used_gpu_hours > self.allocated_gpu_hours:
            said.append(
                "More was used than allocated: who holds a part of a GPU may compute on what its"
                " neighbours leave idle."
            )
        return said


UsageKind = Literal["project", "user", "node"]


class UsageOf(Wire):
    """What a project, a user or a node held and kept busy over a range; averages in GPUs."""

    name: str
    allocated_average: float | None
    utilized_average: float | None
    allocated_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
