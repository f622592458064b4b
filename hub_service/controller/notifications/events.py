"""Events worth a notification, and recent notifications.

Events are found by comparing a workload's previous and current state.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runai.hub_service.model.records import WorkloadRecord, WorkloadState

Kind = Literal["paused", "resumed", "failed", "idle", "ends_soon", "timed_out"]

RECENT_S = 3600.0
MAX_RECENT = 1000


@dataclass(frozen=True, slots=True)
class Notification:
    """One event, as a sentence for the owner of the workload."""

    at: float
    kind: Kind
    workload: str
    project: str
    user: str
    text: str


@dataclass(frozen=True, slots=True)
class ObservedState:
    """State of a workload to compare with later."""

    state: WorkloadState
    pauses: int
    away: bool = False
    """True if it was paused and does not run again yet."""
    is_idle: bool = False
    """True if its owner was notified of idle GPUs."""
    ends_soon: bool = False
    """True if its owner is to know of the end of its time."""
    uid: str = ""
    """Identity of the workload; "": it had no event yet."""


NEVER_RAN = ObservedState(WorkloadState.QUEUED, 0)
"""State of workloads that wait for their first start, without any event yet."""


def observe(
    record: WorkloadRecord, before: ObservedState | None, *, is_idle: bool, ends_soon: bool = False
) -> ObservedState:
    """Return the state of a workload to compare with later."""
    paused = before is not None and len(record.pauses) > before.pauses
    away = paused or record.state is WorkloadState.PAUSED or (before is not None and before.away)
    runs = record.state is WorkloadState.RUNNING or record.state.finished
    is_away, uid = away and not runs, record.uid
    return ObservedState(record.state, len(record.pauses), is_away, is_idle, ends_soon, uid)


def events_between(before: ObservedState, now: ObservedState) -> list[Kind]:
    """Return the events between two states, in their order."""
    kinds: list[Kind] = []
    if now.pauses > before.pauses:
        kinds.append("paused")
    was_away = before.away or now.pauses > before.pauses
    if was_away and now.state is WorkloadState.RUNNING:
        kinds.append("resumed")
    if now.state is WorkloadState.FAILED and before.state is not WorkloadState.FAILED:
        kinds.append("failed")
    if now.state is WorkloadState.TIMED_OUT and before.state is not WorkloadState.TIMED_OUT:
        kinds.append("timed_out")
    if now.is_idle and not before.is_idle:
        kinds.append("idle")
    return kinds


@dataclass
class RecentNotifications:
    """Notifications of the last hour in memory; workload histories are permanent."""

    _all: deque[Notification] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))

    def add(self, notification: Notification) -> None:
        """Add one notification."""
        self._all.append(notification)

    def of(self, user: str, now: float) -> Sequence[Notification]:
        """Return a user's notifications, the latest first."""
        return [n for n in reversed(self._all) if n.user == user and now - n.at < RECENT_S]
