"""Average allocation of each project, and utilization of all, over equal steps of time.

Its size depends only on the number of projects and steps, not on the length of the trace.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

STEPS: Final = 480


class AllocationTimeline:
    """Average GPUs of each project in each step of a time range."""

    def __init__(self, projects: Iterable[str], since: int, until: int, steps: int = STEPS) -> None:
        """Record these projects from `since` to `until`, in seconds."""
        self.since = since
        self.until = max(until, since + 1)
        self.steps = max(1, min(steps, self.until - since))
        self._sums = {name: array("d", bytes(8 * self.steps)) for name in projects}
        self._levels = dict.fromkeys(self._sums, (since, 0))
        self._used = array("d", bytes(8 * self.steps))

    @property
    def step_s(self) -> float:
        """Length of a step in seconds."""
        return (self.until - self.since) / self.steps

    def record(self, project: str, now: int, milli: int) -> None:
        """Record a project's allocation in milli-GPU from `now` on."""
        start, level = self._levels[project]
        self._levels[project] = (now, milli)
        self._add(self._sums[project], start, now, level)

    def use(self, start: int, end: int, milli: float) -> None:
        """Record the milli-GPU that a workload kept busy from `start` to `end`."""
        self._add(self._used, start, end, milli)

    def _add(self, sums: array[float], start: int, end: int, level: float) -> None:
        start, end = max(start, self.since), min(end, self.until)
        if not level or end <= start:
            return
        step = self.step_s
        first = int((start - self.since) / step)
        last = min(self.steps - 1, int((end - self.since) / step))
        for n in range(first, last + 1):
            begins = self.since + n * step
            sums[n] += level * max(0.0, min(end, begins + step) - max(start, begins))

    def close(self) -> None:
        """Add the current allocations up to the end of the range."""
        for project, (_, level) in list(self._levels.items()):
            self.record(project, self.until, level)

    def gpus(self, project: str) -> list[float]:
        """Return a project's average GPUs in each step."""
        return self._averages(self._sums[project])

    def busy_gpus(self) -> list[float]:
        """Return the average GPUs that all workloads together kept busy in each step."""
        return self._averages(self._used)

    def _averages(self, sums: array[float]) -> list[float]:
        return [total / self.step_s / 1000 for total in sums]
