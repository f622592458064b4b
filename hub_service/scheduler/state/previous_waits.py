"""What those who wait were told, kept from cycle to cycle by `state` (X).

Thousands wait, and most are told the same again in the same place: that is not written anew. Knows
who was told what; in which order they stand and why they wait is `waits`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.scheduler.state.planned_workloads import Item

_Queue = tuple[Sequence[Item], Sequence[Reason], list[Wait]]

Lines = tuple[tuple[object, int, Reason], ...]
"""A queue in short: its lanes, how often each has changed, and why all in it wait."""


class Told:
    """The queue of each project as it was told last."""

    def __init__(self) -> None:
        """Nobody was told anything yet."""
        self._queues: dict[str, _Queue] = {}
        self._lines: Mapping[str, Lines] = {}
        self._before: dict[Reason, Reason] = {}
        self._reasons: dict[Reason, Reason] = {}

    def again(self, reason: Reason) -> Reason:
        """Give the object that said the same the last time, so that a glance at it will do."""
        reason = self._before.get(reason, reason)
        return self._reasons.setdefault(reason, reason)

    def says(self, project: str, lines: Lines) -> bool:
        """Tell whether a project's queue was told last just as it is in short."""
        return self._lines.get(project) == lines

    def tell(
        self,
        queues: Mapping[str, Sequence[Item]],
        why: Mapping[Item, Reason],
        lines: Mapping[str, Lines],
    ) -> list[Wait]:
        """Give what everybody is told, project by project; reasons have been told `again`.

        Of projects that have lines and are not among the queues, the same as last.
        """
        before, self._queues = self._queues, {}
        self._before, self._reasons = self._reasons, {}
        self._lines = lines
        waits: list[Wait] = []
        for project in sorted(queues.keys() | lines.keys()):
            queue = queues.get(project)
            if queue is None:
                self._queues[project] = before[project]
            else:
                reasons = [why[item] for item in queue]
                told = _told(queue, reasons, before.get(project, ((), (), [])))
                self._queues[project] = queue, reasons, told
            waits += self._queues[project][2]
        return waits


def _told(queue: Sequence[Item], reasons: Sequence[Reason], before: _Queue) -> list[Wait]:
    """Keep the beginning that is as it was."""
    items_then, reasons_then, waits = before
    kept = _alike(queue, items_then)
    kept = min(kept, _alike(reasons, reasons_then))
    return waits[:kept] + [
        Wait(workload=queue[n].name, reason=reasons[n], position=n + 1)
        for n in range(kept, len(queue))
    ]


def _alike(these: Sequence[object], those: Sequence[object]) -> int:
    """Count how many of the first are the same objects."""
    alike = list(map(is_, these, those))
    return alike.index(False) if False in alike else len(alike)
