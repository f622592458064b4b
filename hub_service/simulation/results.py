"""Results of a run: allocation, waits, pauses, quota violations and fairness.

The meter keeps running sums, and two compact arrays for the percentiles, to use little memory on
long traces. Only the reported figures are floats.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

from runai.hub_service.simulation.timeline import AllocationTimeline

_HOUR: Final = 3600
_ANOMALY_S: Final = 60
"""Tolerance of `worse_than_alone`: excess of the mean wait over the private cluster's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Figures of a run. Percentages are of the cluster's GPU-time in the measured window.

    Waits and job completion times are over all ended jobs, in hours.
    """

    allocated_pct: float
    utilized_pct: float | None
    """GPU-time that the workloads kept busy, by the trace's `busy_pct`; None: it has none."""
    useful_pct: float
    """Allocated, minus lost work and the cost of pauses."""
    wait_mean_h: float
    """Mean wait: the time from submission to end without the job's minimum running."""
    wait_p50_h: float
    wait_p99_h: float
    jct_mean_h: float
    jct_p50_h: float
    jct_p99_h: float
    pauses: int
    moves: int
    lost_pct: float
    violation_h: float
    """Project-hours in which a waiting job fits, by its GPUs, into its project's unused quota."""
    worse_than_alone: int
    """Projects with a mean wait over a minute longer than in a private cluster."""
    jain: float
    """Jain's index of the projects' speeds: their jobs' durations over their completion times."""
    jobs: int


RESULT_KEYS: Final = tuple(field.name for field in fields(Results))


@dataclass(slots=True)
class ProjectTotals:
    """Running sums of one project. Amounts in milli-GPU, times in seconds."""

    quota: int | None
    allocated: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    """Number of waiting jobs by their minimum size."""
    violated_since: int | None = None
    """Since when a job waits that fits into the unused quota; None: none waits."""
    jobs: int = 0
    wait_s: int = 0
    duration_s: int = 0
    jct_s: int = 0

    @property
    def mean_wait_s(self) -> float:
        """Mean wait of its ended jobs."""
        return self.wait_s / self.jobs if self.jobs else 0.0


class SimulationTotals:
    """Running sums of one simulation: GPU time, waits, pauses, moves and quota violations."""

    def __init__(
        self,
        quotas: Mapping[str, int | None],
        *,
        capacity: int,
        since: int,
        until: int,
        timeline: AllocationTimeline | None = None,
    ) -> None:
        """Measure a cluster of `capacity` milli-GPU from `since` to `until`."""
        self._timeline = timeline
        self.projects = {name: ProjectTotals(quota) for name, quota in quotas.items()}
        self.since = since
        self.until = until
        self.now = min(since, 0)
        self.pauses = 0
        self.moves = 0
        self._capacity = capacity
        self._allocated = 0
        self._allocated_s = 0
        self._used: float | None = None
        self._lost = 0
        self._overhead = 0
        self._violated = 0
        self._violation_s = 0
        self._longest_violation_s = 0
        self._waits = array("q")
        self._jcts = array("q")

    def measured(self, start: int, end: int) -> int:
        """Return the seconds of an interval that lie inside the measured window."""
        return max(0, min(end, self.until) - max(start, self.since))

    def advance(self, now: int) -> None:
        """Add the current allocations and violations for the time until `now`."""
        seconds = self.measured(self.now, now)
        self.now = now
        if seconds:
            self._allocated_s += self._allocated * seconds
            self._violation_s += self._violated * seconds

    def record_allocation(self, project: str, change: int) -> None:
        """Record a change of a project's allocation."""
        record = self.projects[project]
        record.allocated += change
        self._allocated += change
        if self._timeline is not None:
            self._timeline.record(project, self.now, record.allocated)

    def wait(self, project: str, size: int, change: int) -> None:
        """Record that one more job (`change` 1) or one fewer (-1) of a size waits."""
        waiting = self.projects[project].waiting
        count = waiting.get(size, 0) + change
        if count:
            waiting[size] = count
        else:
            waiting.pop(size, None)

    def settle(self, projects: Iterable[str]) -> None:
        """Update these projects' violations after all events of an instant."""
        for name in projects:
            record = self.projects[name]
            quota = self._capacity if record.quota is None else record.quota
            fits = bool(record.waiting) and min(record.waiting) <= quota - record.allocated
            since = record.violated_since
            if fits and since is None:
                self._violated += 1
                record.violated_since = self.now
            elif not fits and since is not None:
                self._violated -= 1
                record.violated_since = None
                lasted = self.measured(since, self.now)
                self._longest_violation_s = max(self._longest_violation_s, lasted)

    def use(self, start: int, end: int, milli: float) -> None:
        """Record the milli-GPU that a workload kept busy from `start` to `end`."""
        self._used = (self._used or 0.0) + milli * self.measured(start, end)
        if self._timeline is not None:
            self._timeline.use(start, end, milli)

    def lose(self, milli_s: int) -> None:
        """Record lost work, in milli-GPU-seconds."""
        self._lost += milli_s

    def spend(self, milli_s: int) -> None:
        """Record the cost of resuming after a pause, in milli-GPU-seconds."""
        self._overhead += milli_s

    def finish(self, project: str, *, wait_s: int, jct_s: int, duration_s: int) -> None:
        """Record the end of a job."""
        record = self.projects[project]
        record.jobs += 1
        record.wait_s += wait_s
        record.jct_s += jct_s
        record.duration_s += duration_s
        self._waits.append(wait_s)
        self._jcts.append(jct_s)

    @property
    def longest_violation_s(self) -> int:
        """Longest uninterrupted violation of a project's quota."""
        still = (r.violated_since for r in self.projects.values())
        open_ones = (self.measured(since, self.now) for since in still if since is not None)
        return max((self._longest_violation_s, *open_ones))

    def mean_waits(self) -> dict[str, float]:
        """Return the mean wait of each project with ended jobs, in seconds."""
        return {name: r.mean_wait_s for name, r in self.projects.items() if r.jobs}

    def results(self, alone: Mapping[str, float]) -> Results:
        """Return the figures; `alone` has the mean waits in private clusters."""
        total = self._capacity * max(0, self.until - self.since)
        share = 100 / total if total else 0.0
        waits, jcts = sorted(self._waits), sorted(self._jcts)
        count = max(1, len(waits))
        speeds = [r.duration_s / r.jct_s for r in self.projects.values() if r.jct_s]
        worse = [
            name
            for name, wait in self.mean_waits().items()
            if name in alone and wait > alone[name] + _ANOMALY_S
        ]
        return Results(
            allocated_pct=share * self._allocated_s,
            utilized_pct=None if self._used is None else share * self._used,
            useful_pct=share * (self._allocated_s - self._lost - self._overhead),
            wait_mean_h=sum(waits) / count / _HOUR,
            wait_p50_h=percentile(waits, 50) / _HOUR,
            wait_p99_h=percentile(waits, 99) / _HOUR,
            jct_mean_h=sum(jcts) / count / _HOUR,
            jct_p50_h=percentile(jcts, 50) / _HOUR,
            jct_p99_h=percentile(jcts, 99) / _HOUR,
            pauses=self.pauses,
            moves=self.moves,
            lost_pct=share * self._lost,
            violation_h=self._violation_s / _HOUR,
            worse_than_alone=len(worse),
            jain=jain_index(speeds),
            jobs=len(waits),
        )


def percentile(ordered: list[int], percent: int) -> int:
    """Return the smallest value that at least `percent` percent do not exceed (nearest rank).

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99), percentile([], 50)
    (2, 4, 0)
    """
    if not ordered:
        return 0
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def jain_index(shares: list[float]) -> float:
    """Return Jain's fairness index (1984): 1 for equal shares, 1/n if one share is everything.

    >>> jain_index([2.0, 2.0]), jain_index([1.0, 0.0]), jain_index([])
    (1.0, 0.5, 1.0)
    """
    squares = sum(share * share for share in shares)
    if not squares:
        return 1.0
    return min(1.0, sum(shares) ** 2 / (len(shares) * squares))


def as_json(results: Results) -> dict[str, float | int | None]:
    """Return the results as plain numbers, rounded to 4 decimals."""
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(results).items()}
