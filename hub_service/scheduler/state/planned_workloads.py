"""Workloads and their workers while a plan is being made.

Knows an item (a workload with its account), its members (workers) and what each member does at
the moment. Knows nothing of rooms: `state` changes standings, and whatever depends on them.
"""

from __future__ import annotations

from enum import Enum

from runai.hub_service.scheduler.model.elastic_sizes import sizes_of, unfold
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import Worker, Workload
from runai.hub_service.scheduler.state.project_tree import Account
from runai.hub_service.scheduler.state.request_shape import Booking, Kind


class Standing(Enum):
    """What a worker does while the plan is made."""

    PENDING = "pending"
    RUNNING = "running"
    GOING = "going"
    """Was told to stop, by this plan or before; still on its devices now, not later."""
    RESERVED = "reserved"
    STARTED = "started"
    """Starts by this plan."""
    MOVED = "moved"
    """Still on its old devices now, on new ones later."""

    def __init__(self, word: str) -> None:
        """Note what is asked of a standing at every change."""
        self.holds_later = word not in {"pending", "going"}
        self.leaves = word in {"going", "moved"}


ACTIVE = (Standing.RUNNING, Standing.RESERVED, Standing.STARTED)
"""Holds devices that can be taken."""
_NOW = (Standing.RUNNING, Standing.STARTED)
_LATER = (*_NOW, Standing.RESERVED, Standing.MOVED)


class Member:
    """A worker of an item; `origin` is its booking in the snapshot, `booking` the present one."""

    __slots__ = ("booking", "index", "item", "kind", "origin", "standing", "was", "worker")

    def __init__(self, worker: Worker, index: int, item: Item, kind: Kind) -> None:
        self.worker = worker
        self.index = index
        self.item = item
        self.kind = kind
        self.standing = Standing.PENDING
        self.was = Standing.PENDING
        """Its standing in the snapshot."""
        self.booking: Booking | None = None
        self.origin: Booking | None = None


class Item:
    """A workload with its account and its workers."""

    __slots__ = (
        "account",
        "age",
        "given",
        "is_fixed",
        "is_known",
        "members",
        "minimum",
        "name",
        "place_in_queue",
        "rank",
        "sizes",
        "workload",
    )

    def __init__(self, workload: Workload, account: Account, *, is_known: bool = True) -> None:
        self.given = workload
        """As the snapshot has it."""
        self.sizes = sizes_of(workload)
        """Between which sizes its one worker is resized, whose parts its members are (E2)."""
        if self.sizes is not None:
            workload = unfold(workload, self.sizes)
        self.workload = workload
        self.name = workload.name
        self.account = account
        self.members: list[Member] = []
        self.minimum = min(workload.minimum, len(workload.workers))
        self.is_known = is_known
        """Whether its project is one; without one it may only hold what it has."""
        self.is_fixed = not workload.is_preemptible
        """A session within the build quota: never preempted (Q1)."""
        self.rank = workload.rank
        self.age = (workload.submitted, workload.name)
        self.place_in_queue = (not self.is_fixed, -self.rank, self.age)
        """Orders a project's queue as its users see it (O2)."""

    def is_extra(self, member: Member) -> bool:
        """Tell whether a member is beyond what the workload asks for: on idle GPUs only (E2)."""
        sizes = self.sizes
        return sizes is not None and member.index > sizes.asked - sizes.least

    def request(self, wanted: int) -> int:
        """Cut what its workers want to what it asks for, in milli-GPU (E2)."""
        sizes = self.sizes
        return wanted if sizes is None else min(wanted, sizes.asked * WHOLE_GPU)

    def count(self, *standings: Standing) -> int:
        """Count its workers in these standings."""
        return sum(1 for member in self.members if member.standing in standings)

    def has_minimum(self, more: int = 0, *, now: bool = False) -> bool:
        """Tell whether its minimum is there with so many more: once each is in place, or now.

        Less than that is never started, moved or held (P4).
        """
        lacking = self.minimum - more
        return lacking <= 0 or self.count(*(_NOW if now else _LATER)) >= lacking
