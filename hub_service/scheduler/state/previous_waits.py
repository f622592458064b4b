"""Wait decisions of the previous cycle, reused where nothing changed (X).

Thousands of workloads wait, and most have the same reason and position as before; reusing the
objects saves building them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.scheduler.state.planned_workloads import PlannedWorkload

_Queue = tuple[Sequence[PlannedWorkload], Sequence[Reason], list[Wait]]
_NO_QUEUE: _Queue = ((), (), [])

QueueDigest = tuple[tuple[object, int, Reason], ...]
"""Digest of a queue: its equivalence classes, their numbers of changes, and the common reason."""


class PreviousWaits:
    """Queues of all projects as last reported."""

    def __init__(self) -> None:
        """Start without reported queues."""
        self._queues: dict[str, _Queue] = {}
        self._digests: Mapping[str, QueueDigest] = {}
        self._previous_reasons: dict[Reason, Reason] = {}
        self._reasons: dict[Reason, Reason] = {}

    def reuse(self, reason: Reason) -> Reason:
        """Return the equal object of the previous cycle, so that comparisons are by identity."""
        reason = self._previous_reasons.get(reason, reason)
        return self._reasons.setdefault(reason, reason)

    def is_unchanged(self, project: str, digest: QueueDigest) -> bool:
        """Return True if a project's queue was last reported with this digest."""
        return self._digests.get(project) == digest

    def store(
        self,
        queues: Mapping[str, Sequence[PlannedWorkload]],
        reason_by_workload: Mapping[PlannedWorkload, Reason],
        digests: Mapping[str, QueueDigest],
    ) -> list[Wait]:
        """Keep all queues for the next cycle; return their wait decisions, project by project.

        The reasons must come from `reuse`. Projects in `digests` without a queue keep the decisions
        of the previous cycle.
        """
        previous_queues, self._queues = self._queues, {}
        self._previous_reasons, self._reasons = self._reasons, {}
        self._digests = digests
        waits: list[Wait] = []
        for project in sorted(queues.keys() | digests.keys()):
            queue = queues.get(project)
            if queue is None:
                self._queues[project] = previous_queues[project]
            else:
                reasons = [reason_by_workload[planned] for planned in queue]
                previous_queue = previous_queues.get(project, _NO_QUEUE)
                queue_waits = _waits_reusing(queue, reasons, previous_queue)
                self._queues[project] = queue, reasons, queue_waits
            waits += self._queues[project][2]
        return waits


def _waits_reusing(
    queue: Sequence[PlannedWorkload], reasons: Sequence[Reason], previous: _Queue
) -> list[Wait]:
    """Build wait decisions, reusing the unchanged beginning of the previous ones."""
    previous_queue, previous_reasons, waits = previous
    unchanged = _common_prefix(queue, previous_queue)
    unchanged = min(unchanged, _common_prefix(reasons, previous_reasons))
    return waits[:unchanged] + [
        Wait(workload=queue[n].name, reason=reasons[n], position=n + 1)
        for n in range(unchanged, len(queue))
    ]


def _common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the common prefix of identical objects."""
    same = list(map(is_, left, right))
    return same.index(False) if False in same else len(same)
