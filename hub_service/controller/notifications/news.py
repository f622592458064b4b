"""What is worth telling about a workload, and what was told lately.

Pure: compares what is with what was. Known by everything that tells it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runai.hub_service.model.records import WorkloadRecord, WorkloadState

Kind = Literal["paused", "resumed", "failed", "idle"]

RECENT_S = 3600.0
MOST = 1000


@dataclass(frozen=True, slots=True)
class Notification:
    """One thing that happened, as a sentence for the owner of the workload."""

    at: float
    kind: Kind
    workload: str
    project: str
    user: str
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What tells whether something happened since."""

    state: WorkloadState
    pauses: int
    away: bool = False
    """Whether it was paused and does not run again yet."""
    is_idle: bool = False
    """Whether its owner has been told that its GPUs are idle."""


NEVER_RAN = Seen(WorkloadState.QUEUED, 0)
"""What is remembered of whatever waits for its first start: nothing can have happened to it."""


def seen(record: WorkloadRecord, before: Seen | None, *, is_idle: bool) -> Seen:
    """Return what is to be remembered of a workload."""
    paused = before is not None and len(record.pauses) > before.pauses
    away = paused or record.state is WorkloadState.PAUSED or (before is not None and before.away)
    runs = record.state is WorkloadState.RUNNING or record.state.finished
    return Seen(record.state, len(record.pauses), away and not runs, is_idle)


def happened(before: Seen, now: Seen) -> list[Kind]:
    """Name what happened to a workload between two looks, in the order in which it did."""
    kinds: list[Kind] = []
    if now.pauses > before.pauses:
        kinds.append("paused")
    was_away = before.away or now.pauses > before.pauses
    if was_away and now.state is WorkloadState.RUNNING:
        kinds.append("resumed")
    if now.state is WorkloadState.FAILED and before.state is not WorkloadState.FAILED:
        kinds.append("failed")
    if now.is_idle and not before.is_idle:
        kinds.append("idle")
    return kinds


@dataclass
class Recent:
    """The notifications of the last hour, in memory: histories keep what happened for good."""

    _all: deque[Notification] = field(default_factory=lambda: deque(maxlen=MOST))

    def add(self, notification: Notification) -> None:
        """Keep one."""
        self._all.append(notification)

    def of(self, user: str, now: float) -> Sequence[Notification]:
        """Return a user's own, the latest first."""
        return [n for n in reversed(self._all) if n.user == user and now - n.at < RECENT_S]
