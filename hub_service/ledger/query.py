"""What a question about usage asks for, and what its answer says of the totals that were found.

Pure: chooses resolution and steps, and turns totals at the steps' ends and the watched time into
averages. Knows no database and no clock. Used by `Ledger.usage`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runai.hub_service.ledger.integration import Span
from runai.hub_service.ledger.totals import LEVELS_S, Scope, Totals

MAX_POINTS = 1500
NICE_POINTS = 300
NICE_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)

NOTHING_S = 1e-6
"""Less time than this is a rounding error."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Whose usage: a workload's, else a node's, else of a project, a user, both, or everybody."""

    workload: str | None = None
    project: str | None = None
    user: str | None = None
    node: str | None = None

    @property
    def scope(self) -> Scope:
        """Return the series that answers."""
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
    """Where the totals are needed; all on the grid of what is stored that long ago."""

    since: int
    until: int
    step_s: int
    ends: tuple[int, ...]
    """The ends of the steps; the first step begins at `since`."""


@dataclass(frozen=True, slots=True)
class Point:
    """Averages in GPUs over the step that ends at `at`; None: nobody watched or measured."""

    at: float
    allocated: float | None
    utilized: float | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Allocated and utilized over a range, time-weighted, zeros included and gaps left out.

    Averages are in GPUs. Those of a workload are over the time that it held anything, all others
    over the time that was watched. GPU-hours are sums.
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
    """The part of the time in which anything was held that was measured; None: nothing was."""


def answers(series: Scope, asked: Scope) -> bool:
    """Tell whether a series is about what was asked for.

    A workload is found by its name alone; project and user only say more.
    """
    if asked.kind != "workload":
        return series == asked
    return (
        series.kind == "workload"
        and series.workload == asked.workload
        and asked.project in {"", series.project}
        and asked.user in {"", series.user}
    )


def choose_range(
    since: float, until: float, step_s: int | None, *, now: float, memory_since: float
) -> Range:
    """Widen a range and its step to the finest grid that reaches back so far.

    Single seconds since `memory_since`, ten for two days, minutes for 90 days, then hours.
    """
    until = min(until, now)
    since = min(since, until)
    grid = _grid(now - since, in_memory=since >= memory_since)
    start = int(since) // grid * grid
    end = max(start, -(-int(until) // grid) * grid if until < memory_since else int(until))
    wanted = step_s or next(
        (s for s in NICE_STEPS_S if (end - start) / s <= NICE_POINTS), NICE_STEPS_S[-1]
    )
    step = max(wanted, (end - start) // MAX_POINTS, 1)
    step = -(-step // grid) * grid
    ends = tuple(range(start - start % step + step, end, step))
    return Range(start, end, step, (*ends, end) if end > start else ())


def _grid(age: float, *, in_memory: bool) -> int:
    if in_memory:
        return 1
    ten, minute, hour = LEVELS_S
    # A little earlier than the rows are dropped, so that a query never meets half of them.
    if age <= 2 * 86400 - 3600:
        return ten
    return minute if age <= 90 * 86400 - 3600 else hour


def watched_s(spans: Iterable[Span], since: float, until: float) -> float:
    """Return how much of a range the ledger watched."""
    return sum(max(0.0, min(span.ended, until) - max(span.started, since)) for span in spans)


def usage(scope: Scope, found: Range, totals: Sequence[Totals], spans: Sequence[Span]) -> Usage:
    """Answer from the totals at `since` and at each end."""
    points: list[Point] = []
    start, before = found.since, totals[0]
    for end, now in zip(found.ends, totals[1:], strict=True):
        points.append(_point(end, now.minus(before), watched_s(spans, start, end)))
        start, before = end, now
    whole = totals[-1].minus(totals[0])
    if scope.kind == "workload":
        allocated = _ratio(whole.allocated_s, whole.held_s)
        utilized = _ratio(whole.used_s, whole.measured_s)
    else:
        total = _point(found.until, whole, watched_s(spans, found.since, found.until))
        allocated, utilized = total.allocated, total.utilized
    return Usage(
        since=found.since,
        until=found.until,
        step_s=found.step_s,
        points=tuple(points),
        allocated_average=allocated,
        utilized_average=utilized,
        allocated_gpu_hours=whole.allocated_s / 3600,
        used_gpu_hours=whole.used_s / 3600,
        idle_gpu_hours=whole.idle_s / 3600,
        measured=_ratio(whole.measured_s, whole.held_s),
    )


def _point(at: float, added: Totals, watched: float) -> Point:
    # While nothing was held there was nothing to measure: that is a zero, not a gap.
    not_measured = added.held_s - added.measured_s
    return Point(
        at, _ratio(added.allocated_s, watched), _ratio(added.used_s, watched - not_measured)
    )


def _ratio(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > NOTHING_S else None
