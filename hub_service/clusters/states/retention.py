"""Retention of finished workloads, so that months of short jobs do not fill the memory.

Pure. Each is kept for a time; beyond the maximum, the oldest one of the user with most goes first,
so that one user's flood does not evict another user's workloads. The ledger keeps all (ADR 0021).
"""

from collections import OrderedDict
from dataclasses import dataclass

from runai.hub_service.model.records import WorkloadId

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits of the retention: age, number, and minimum age."""

    max_age_s: float = 30 * DAY_S
    max_finished: int = 10_000
    min_age_s: float = 600.0
    """Minimum age in seconds, even beyond `max_finished`.

    A client that waits learns the outcome; one that lost its response finds its submission.
    """


class FinishedWorkloads:
    """Finished workloads of each user, in the order in which they ended."""

    def __init__(self, policy: RetentionPolicy) -> None:
        """Start empty."""
        self._policy = policy
        self._ended: dict[str, OrderedDict[WorkloadId, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, workload: WorkloadId, user: str, at: float) -> None:
        """Add a finished workload; a repeat changes nothing."""
        ended = self._ended.setdefault(user, OrderedDict())
        if workload not in ended:
            ended[workload] = at
            self._count += 1

    def discard(self, workload: WorkloadId, user: str) -> None:
        """Remove a workload that is gone, finished or not."""
        ended = self._ended.get(user, OrderedDict())
        if ended.pop(workload, None) is not None:
            self._count -= 1
        if not ended:
            self._ended.pop(user, None)

    def next_expiry(self) -> tuple[float, WorkloadId] | None:
        """Return the time of the next expiry, and the workload that expires; None: none does."""
        if not self._count:
            return None
        policy = self._policy
        at, workload = min(_oldest(ended) for ended in self._ended.values())
        due = at + policy.max_age_s, workload
        if self._count <= policy.max_finished:
            return due
        _, user = max((len(ended), user) for user, ended in self._ended.items())
        at, workload = _oldest(self._ended[user])
        return min(due, (at + policy.min_age_s, workload))


def _oldest(ended: "OrderedDict[WorkloadId, float]") -> tuple[float, WorkloadId]:
    """Return the first workload that ended, with the time of its end."""
    workload = next(iter(ended))
    return ended[workload], workload
