"""The wire contract of usage: allocation and utilization over a time range."""

from datetime import datetime
from typing import Any, Literal

from runai.hub_service.wire.base_schema import Wire

MOSTLY = 0.9
"""Below this measured part, `caveats` warns. It never reaches 1: reports are seconds late."""


class UsagePoint(Wire):
    """Averages over the step that ends at `at`, in GPUs; None: not measured."""

    at: datetime
    allocated: float | None
    utilized: float | None


class UsageSeries(Wire):
    """Time-weighted allocation and utilization over a range: zeros count, gaps do not."""

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
    """GPU-hours allocated and less than 1 % busy."""
    measured: float | None = None
    """Measured part of the time with allocations, 0..1; None: there was no allocation."""
    simulated: bool

    def utilized_beside_allocated(self) -> float | None:
        """Return the average utilization over the same time as `allocated_average`.

        `utilized_average` leaves out time that was not measured. Here that time counts as not
        used, which makes both comparable: their ratio is the ratio of the GPU-hours.
        """
        if self.allocated_average is None or self.utilized_average is None:
            return None
        if not self.allocated_gpu_hours:
            return 0.0
        return self.allocated_average * self.used_gpu_hours / self.allocated_gpu_hours

    def caveats(self) -> list[str]:
        """Return warnings to show beside `utilized_beside_allocated`; usually none."""
        warnings = []
        if self.measured is not None and self.measured < MOSTLY:
            warnings.append(
                f"Measured {100 * self.measured:.0f} % of the time that GPUs were held;"
                " the rest counts as not used."
            )
        if self.used_gpu_hours > self.allocated_gpu_hours:
            warnings.append(
                "More was used than allocated: a fraction of a GPU may compute on what its"
                " neighbours leave idle."
            )
        return warnings


UsageKind = Literal["project", "user", "node"]


class UsageOf(Wire):
    """Usage of a project, a user or a node over a range; averages in GPUs."""

    name: str
    allocated_average: float | None
    utilized_average: float | None
    allocated_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float


class PastWorkload(Wire):
    """A past workload as recorded in the ledger; simulations replay it."""

    id: str
    project: str
    user: str
    kind: Literal["job", "session"]
    submitted: datetime
    gpus: float
    """Average allocation while it had one."""
    held_s: float
    """Seconds with an allocation; pauses do not count."""
    starts: int = 1
    """Number of starts."""
    asked: dict[str, Any] | None = None
    """Its request as in a snapshot, equal workers once with their `count`; None: not recorded."""
