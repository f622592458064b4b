"""Workloads and workers while a plan is computed.

A `PlannedWorkload` is a workload with the node of its project, a `PlannedWorker` one of its workers
with its current phase.
"""

from __future__ import annotations

from enum import Enum

from runai.hub_service.scheduler.model.elastic_sizes import sizes_of, unfold
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import Worker, Workload
from runai.hub_service.scheduler.state.quota_by_type import Charge
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape


class Phase(Enum):
    """State of a worker in the plan so far."""

    PENDING = "pending"
    RUNNING = "running"
    TERMINATING = "going"
    """Received a stop decision, now or earlier; occupies its devices now, but not later."""
    RESERVED = "reserved"
    STARTED = "started"
    """Starts with this plan."""
    MOVED = "moved"
    """Occupies its old devices now, and new ones later."""

    def __init__(self, word: str) -> None:
        """Cache the properties that every state change reads."""
        self.holds_later = word not in {"pending", "going"}
        self.vacates = word in {"going", "moved"}


ACTIVE = (Phase.RUNNING, Phase.RESERVED, Phase.STARTED)
"""Phases with devices that can be reclaimed."""
_RUNNING_NOW = (Phase.RUNNING, Phase.STARTED)
_PLACED_LATER = (*_RUNNING_NOW, Phase.RESERVED, Phase.MOVED)


class PlannedWorker:
    """A worker of a workload. `origin` is its booking in the snapshot, `booking` the latest."""

    __slots__ = (
        "booking",
        "index",
        "origin",
        "phase",
        "planned",
        "shape",
        "snapshot_phase",
        "worker",
    )

    def __init__(
        self, worker: Worker, index: int, planned: PlannedWorkload, shape: RequestShape
    ) -> None:
        self.worker = worker
        self.index = index
        self.planned = planned
        self.shape = shape
        self.phase = Phase.PENDING
        self.snapshot_phase = Phase.PENDING
        """Phase in the snapshot."""
        self.booking: Booking | None = None
        self.origin: Booking | None = None

    def with_shape(self, shape: RequestShape) -> PlannedWorker:
        """Return a copy with another shape. It is for comparisons only: no state contains it."""
        other = PlannedWorker(self.worker, self.index, self.planned, shape)
        other.phase, other.snapshot_phase = self.phase, self.snapshot_phase
        other.booking, other.origin = self.booking, self.origin
        return other


class PlannedWorkload:
    """A workload with its project and its workers."""

    __slots__ = (
        "age",
        "charge",
        "guaranteed",
        "is_fixed",
        "is_known",
        "members",
        "minimum",
        "name",
        "place_in_queue",
        "project",
        "rank",
        "sizes",
        "snapshot_workload",
        "workload",
    )

    def __init__(self, workload: Workload, charge: Charge, *, is_known: bool = True) -> None:
        self.charge = charge
        self.snapshot_workload = workload
        """The workload as in the snapshot."""
        self.sizes = sizes_of(workload)
        """Sizes of an elastic worker, whose parts the members then are (E2); None otherwise."""
        if self.sizes is not None:
            workload = unfold(workload, self.sizes)
        self.workload = workload
        self.name = workload.name
        self.project = charge.project
        self.members: list[PlannedWorker] = []
        self.minimum = min(workload.minimum, len(workload.workers))
        self.guaranteed = min(workload.guaranteed, len(workload.workers))
        """Number of workers that only the own project may take; 0 or at least the minimum (E4)."""
        self.is_known = is_known
        """True if its project exists and knows its user; else it only keeps the devices it has."""
        self.is_fixed = not workload.is_preemptible
        """A session within the build quota, which is never preempted (Q1)."""
        self.rank = workload.rank
        self.age = workload.age
        self.place_in_queue = (not self.is_fixed, -self.rank, self.age)
        """Sort key of a project's queue as users see it (O2)."""

    def exceeds_request(self, member: PlannedWorker) -> bool:
        """Return True if a member exceeds the request, so it needs idle GPUs (E2)."""
        sizes = self.sizes
        return sizes is not None and member.index > sizes.requested - sizes.minimum

    def cap_to_request(self, demand: int) -> int:
        """Cap the demanded milli-GPU at the workload's request (E2)."""
        sizes = self.sizes
        return demand if sizes is None else min(demand, sizes.requested * WHOLE_GPU)

    def count(self, *phases: Phase) -> int:
        """Return the number of workers in these phases."""
        return sum(1 for member in self.members if member.phase in phases)

    def has_minimum(self, more: int = 0, *, now: bool = False) -> bool:
        """Return True if the minimum is reached with `more` workers added.

        A workload below it is never started, moved or reserved for (P4). `now` counts only workers
        that run already.
        """
        missing_workers = self.minimum - more
        phases = _RUNNING_NOW if now else _PLACED_LATER
        return missing_workers <= 0 or self.count(*phases) >= missing_workers
