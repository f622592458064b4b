"""Usage queries: choice of range and step, and averages from the database's sums.

Pure: no database and no clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runai.hub_service.ledger.totals import LEVELS_S, ZERO, Scope, Totals, window_of

MAX_POINTS = 1500
NICE_POINTS = 300
NICE_STEPS_S = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)

EPSILON_S = 1e-6
"""Times below this are rounding errors."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Filter for usage: one workload, else one node, else project, user or both, else all."""

    workload: str | None = None
    project: str | None = None
    user: str | None = None
    node: str | None = None

    @property
    def scope(self) -> Scope:
        """Return the key of the stored usage series that this filter selects."""
        project, user = self.project or "", self.user or ""
        if self.workload:
            return Scope("workload", project, user, self.workload)
        if self.node:
            return Scope("node", node=self.node)
        if project and user:
            return Scope("member", project, user)
        if project:
            return Scope("project", project)
        return Scope("user", user=user) if user else Scope("all")


@dataclass(frozen=True, slots=True)
class Range:
    """Time range and steps of a query, aligned to windows stored for its age."""

    since: int
    until: int
    step_s: int
    ends: tuple[int, ...]
    """Ends of the steps; the first step starts at `since`."""
    grid: int
    """Length of the finest windows stored for the whole range."""

    def pieces(self) -> list[tuple[int, int, int]]:
        """Divide the range so that the fewest stored windows must be summed.

        Each piece is (length of its windows in seconds, start exclusive, end inclusive): long
        windows in the middle, short ones at unaligned ends.
        """
        until = window_of(self.until, self.grid)
        coarse = max(level for level in LEVELS_S if self.step_s % level == 0)
        coarse_start, coarse_end = window_of(self.since, coarse), until // coarse * coarse
        pieces = [
            (self.grid, self.since, coarse_start),
            (coarse, coarse_start, coarse_end),
            (self.grid, coarse_end, until),
        ]
        if coarse_start >= coarse_end or coarse == self.grid:
            return [(self.grid, self.since, until)]
        return [piece for piece in pieces if piece[1] < piece[2]]


@dataclass(frozen=True, slots=True)
class Point:
    """Average GPUs over the step that ends at `at`; None: a gap, or not measured."""

    at: float
    allocated: float | None
    utilized: float | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Allocated and utilized GPUs over a range: time-weighted averages and GPU-hours.

    Zeros count, gaps do not. Averages of a workload are over the time with an allocation, all other
    averages over the time with a running service.
    """

    since: float
    until: float
    step_s: int
    points: tuple[Point, ...]
    allocated_average: float | None
    utilized_average: float | None
    allocated_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    measured: float | None
    """Measured share of the time with an allocation, 0..1; None: there was no allocation."""


def choose_range(since: float, until: float, step_s: int | None, *, now: float) -> Range:
    """Align a range and its step to the finest windows stored for its age.

    These are windows of ten seconds for two days, minutes for 90 days, then hours.
    """
    until = min(until, now)
    since = min(since, until)
    grid = grid_of(now - since)
    start = int(since) // grid * grid
    end = max(start, min(window_of(until, grid), math.ceil(now)))
    desired_step = step_s or next(
        (s for s in NICE_STEPS_S if (end - start) / s <= NICE_POINTS), NICE_STEPS_S[-1]
    )
    min_step = (end - start) // MAX_POINTS
    if min_step > LEVELS_S[-1] / 2:
        min_step = window_of(min_step, LEVELS_S[-1])  # whole hours: too many minutes to sum
    step = window_of(max(desired_step, min_step), grid)
    ends = tuple(range(start - start % step + step, end, step))
    return Range(start, end, step, (*ends, end) if end > start else (), grid)


def grid_of(age: float) -> int:
    """Return the length of the finest windows still stored at an age in seconds."""
    ten, minute, hour = LEVELS_S
    # An hour before the rows are dropped, so that no query meets a partly dropped range.
    if age <= 2 * 86400 - 3600:
        return ten
    return minute if age <= 90 * 86400 - 3600 else hour


def usage(
    scope: Scope, query_range: Range, sums: Mapping[int, Totals], watched: Mapping[int, Totals]
) -> Usage:
    """Compute averages and GPU-hours of a query from sums per step.

    `sums` are those of `scope`; `watched` is the time that the ledger ran. Other time is a gap, not
    zero. Keys are step numbers.
    """
    points: list[Point] = []
    total, watched_s = ZERO, 0.0
    for step, end in enumerate(query_range.ends):
        added, seconds = sums.get(step, ZERO), watched.get(step, ZERO).held_s
        points.append(_point(end, added, seconds))
        total, watched_s = total.plus(added), watched_s + seconds
    if scope.kind == "workload":
        allocated = _ratio(total.allocated_s, total.held_s)
        utilized = _ratio(total.used_s, total.measured_s)
    else:
        average = _point(query_range.until, total, watched_s)
        allocated, utilized = average.allocated, average.utilized
    return Usage(
        since=query_range.since,
        until=query_range.until,
        step_s=query_range.step_s,
        points=tuple(points),
        allocated_average=allocated,
        utilized_average=utilized,
        allocated_gpu_hours=total.allocated_s / 3600,
        used_gpu_hours=total.used_s / 3600,
        idle_gpu_hours=total.idle_s / 3600,
        measured=_ratio(total.measured_s, total.held_s),
    )


def _point(at: float, added: Totals, watched: float) -> Point:
    """Return the averages of a step in which the ledger ran for `watched` seconds."""
    # Time without an allocation needs no measurement: it counts as zero, not as a gap.
    not_measured = added.held_s - added.measured_s
    return Point(
        at, _ratio(added.allocated_s, watched), _ratio(added.used_s, watched - not_measured)
    )


def _ratio(amount: float, seconds: float) -> float | None:
    """Return the average over some seconds; None if there were none."""
    return amount / seconds if seconds > EPSILON_S else None
