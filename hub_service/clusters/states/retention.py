"""Which finished workloads are still kept, so that months of short jobs fill nobody's memory.

Pure. Each is kept for a time; where there are too many, the oldest of the user who has most goes
first, so that nobody's flood costs others what they expect to find. What is forgotten stays in the
ledger (ADR 0021). Kept by `shelf`, asked by `recorded`.
"""

from collections import OrderedDict
from dataclasses import dataclass

from runai.hub_service.model.records import WorkloadId

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """For how long after its end a workload is kept, and how many of all are."""

    for_s: float = 30 * DAY_S
    most: int = 10_000
    at_least_s: float = 600.0
    """However many there are: who waits for a job is to learn how it ended, and whose answer was
    lost finds what was submitted."""


class Finished:
    """The finished workloads of each user, in the order in which they ended."""

    def __init__(self, rules: Keeping) -> None:
        """Begin with none."""
        self._rules = rules
        self._ended: dict[str, OrderedDict[WorkloadId, float]] = {}
        self._many = 0

    def __len__(self) -> int:
        return self._many

    def add(self, workload: WorkloadId, user: str, at: float) -> None:
        """Note that a workload has ended; a repeat changes nothing."""
        ended = self._ended.setdefault(user, OrderedDict())
        if workload not in ended:
            ended[workload] = at
            self._many += 1

    def discard(self, workload: WorkloadId, user: str) -> None:
        """Note that a workload is there no more, whether or not it had ended."""
        ended = self._ended.get(user, OrderedDict())
        if ended.pop(workload, None) is not None:
            self._many -= 1
        if not ended:
            self._ended.pop(user, None)

    def next(self) -> tuple[float, WorkloadId] | None:
        """Return which is to be forgotten next, and when; None while there are none."""
        if not self._many:
            return None
        rules = self._rules
        at, workload = min(_first(ended) for ended in self._ended.values())
        due = at + rules.for_s, workload
        if self._many <= rules.most:
            return due
        _, user = max((len(ended), user) for user, ended in self._ended.items())
        at, workload = _first(self._ended[user])
        return min(due, (at + rules.at_least_s, workload))


def _first(ended: "OrderedDict[WorkloadId, float]") -> tuple[float, WorkloadId]:
    workload = next(iter(ended))
    return ended[workload], workload
