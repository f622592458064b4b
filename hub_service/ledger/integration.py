"""Turn what is held, and what the agents measure, into the running totals of each scope.

Allocation is a step function of the service's clock, so it is exact without any agent. A report
says how busy devices were over its interval; it counts for whoever held them then, also when it
comes late or twice. Time that nobody witnessed is a gap. No I/O and no clock: `Ledger` drives it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runai.hub_service.api.reports import AgentReport
from runai.hub_service.ledger.totals import Scope, Series

GAP_S = 60.0
"""A silence longer than this (a machine asleep) was witnessed by nobody."""

REMEMBER_S = 15 * 60.0
"""How late a report may be and still count for those who held its devices."""

IDLE_BELOW = 0.01
"""A device less busy than this is idle for its holder."""


class Held(NamedTuple):
    """One workload's hold on one device, by the device's UUID; several of its workers add up."""

    project: str
    user: str
    workload: str
    device: str
    milli: int
    node: str = ""
    """Where the device is; "" where that is not known."""


@dataclass(slots=True)
class Span:
    """A time during which the ledger watched without a gap."""

    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class _Segment:
    """A time during which allocation did not change; it ends where the next one starts."""

    start: float
    held: Mapping[tuple[str, str], int]
    """Milli-GPU by workload and device."""
    scopes: Mapping[tuple[str, str], tuple[Series, ...]]
    """By workload and device the series that it counts for, the device's own left out."""
    devices: Mapping[str, Series]
    milli: Mapping[int, int]
    """Milli-GPU by series id."""
    series: tuple[Series, ...]
    witnessed: bool = True


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a report's time in which allocation did not change, and what is counted for it.

    A hundred samples count for the whole, and tens for a project: they are added up here first, so
    that each series is told once.
    """

    segment: _Segment
    length_s: float
    seconds: Sequence[tuple[int, float]]
    """It, cut at whole seconds; those that are written already count for the one after them."""
    rates: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(_nothing))
    """Milli-GPU that were measured, devices that were busy and GPUs that were idle."""


def _nothing() -> list[float]:
    return [0.0, 0.0, 0.0]


class Integration:
    """The state of the sums: what is held now, and since when that is so."""

    def __init__(self, series: Callable[[Scope], Series]) -> None:
        """Take the function that returns a scope's series, making it if need be."""
        self._series = series
        self._segments: deque[_Segment] = deque()
        self.measured_until: dict[str, float] = {}
        """By node."""
        self._ask_again = False
        self.given: Sequence[Held] | None = None
        """What was held when somebody said so last; the same list says the same."""
        self.at: float | None = None
        """Until when it was watched."""
        self.closed_until = 0
        """Seconds before this one are written; what belongs to them counts for this one."""
        self.spans: list[Span] = []
        self._changed: set[Series] = set()
        self._listed: Mapping[tuple[str, str], int] = {}
        self._devices_of: dict[str, list[str]] = {}
        """Of each workload, as they were `_listed` last."""

    @property
    def held(self) -> Mapping[tuple[str, str], int]:
        """What is held now: milli-GPU by workload and device."""
        return self._segments[-1].held if self._segments else {}

    def devices_of(self, workload: str) -> Sequence[str]:
        """Return the devices that a workload holds now."""
        if self._listed is not self.held:
            self._listed, self._devices_of = self.held, {}
            for holder, device in self.held:
                self._devices_of.setdefault(holder, []).append(device)
        return self._devices_of.get(workload, ())

    @property
    def changed(self) -> set[Series]:
        """Those that have other totals than when they were written, as all have that hold."""
        return self._changed.union(self._segments[-1].series if self._segments else ())

    def touch(self, series: Series) -> None:
        """Note that a series is to be written."""
        self._changed.add(series)

    def is_written(self, series: Series) -> None:
        """Note that a series was written as it is."""
        self._changed.discard(series)

    def advance(self, at: float) -> None:
        """Note that it was watched until `at`; an earlier time changes nothing."""
        if self.at is None:
            self.at = at
            self.spans.append(Span(at, at))
            self._segments.append(self._segment(at, ()))
            return
        if at <= self.at:
            return
        last, self.at = self._segments[-1], at
        since = self.spans[-1].ended
        if at - since > GAP_S:
            self.spans.append(Span(at, at))
            self._segments.append(_Segment(since, {}, {}, {}, {}, (), witnessed=False))
            self._segments.append(replace(last, start=at))
            for series in last.series:
                series.hold(since, 0.0)
                series.hold(at, last.milli[series.id] / 1000)
        else:
            self.spans[-1].ended = at
        while len(self._segments) > 1 and self._segments[1].start < at - REMEMBER_S:
            self._segments.popleft()

    def is_watched(self, at: float, *, and_for: float) -> bool:
        """Tell whether a time was watched, or is less than so many seconds after one that was."""
        span = next((span for span in reversed(self.spans) if span.started < at), None)
        return span is not None and at <= span.ended + and_for

    def hold(self, at: float, held: Sequence[Held]) -> None:
        """Note that from `at` on exactly this is held."""
        self.advance(at)
        if held is self.given and not self._ask_again:
            return
        last = self._segments[-1]
        if self._ask_again or _by_workload_and_device(held) != last.held:
            assert self.at is not None
            next_ = self._segment(self.at, held)
            for series in last.series:
                if series.id not in next_.milli:
                    series.hold(self.at, 0.0)
                    self._changed.add(series)
            for series in next_.series:
                series.hold(self.at, next_.milli[series.id] / 1000)
            self._segments.append(next_)
            self._ask_again = False
        self.given = held  # not before: what could not be noted is noted the next time

    def ask_again(self) -> None:
        """Note that scopes have other series from now on, though the same may be held."""
        self._ask_again = True

    def reclaim(self, at: float, series: Series, gpu_seconds: float) -> None:
        """Count GPU-seconds that were not left idle until `at`."""
        series.add([(max(int(at), self.closed_until), 1.0)], idle=gpu_seconds)
        self._changed.add(series)

    def measure(self, report: AgentReport) -> None:
        """Count one report; one that was counted already changes nothing."""
        assert self.at is not None, "advance first"
        end = min(report.at, self.at)
        start = max(report.at - report.interval, self.measured_until.get(report.node, 0.0))
        if end <= start:
            return
        self.measured_until[report.node] = end
        pieces = [
            _Piece(segment, to - from_, self._seconds(from_, to))
            for segment, from_, to in self._between(start, end)
            if segment.witnessed
        ]
        for sample in report.samples:
            if sample.utilization is not None:
                _count(pieces, (sample.workload, sample.device), sample.utilization, end - start)
        for device in report.devices:
            if device.utilization is not None:
                self._count_device(pieces, device.device, device.utilization)
        for piece in pieces:
            milli = piece.segment.milli
            for series, (measured, used, idle) in piece.rates.items():
                of_it = measured / milli[series.id] if measured else 0.0
                series.add(piece.seconds, measured=of_it, used=used, idle=idle)
            self._changed.update(piece.rates)

    def _count_device(self, pieces: Sequence[_Piece], device: str, utilization: float) -> None:
        for piece in pieces:
            holder = piece.segment.devices.get(device)
            if holder is None and utilization <= 0:
                continue
            rates = piece.rates[holder or self._series(Scope("device", device=device))]
            rates[1] += utilization
            if holder is not None:
                milli = piece.segment.milli[holder.id]
                rates[0] += milli
                if utilization < IDLE_BELOW:
                    rates[2] += milli / 1000

    def _seconds(self, start: float, end: float) -> Sequence[tuple[int, float]]:
        closed = self.closed_until
        return [(max(second, closed), part) for second, part in _seconds(start, end)]

    def _between(self, start: float, end: float) -> Iterator[tuple[_Segment, float, float]]:
        until = self.at or 0.0
        for segment in reversed(self._segments):
            from_, to = max(start, segment.start), min(end, until)
            if from_ < to:
                yield segment, from_, to
            if segment.start <= start:
                return
            until = segment.start

    def _segment(self, start: float, held: Sequence[Held]) -> _Segment:
        scopes: dict[tuple[str, str], tuple[Series, ...]] = {}
        devices: dict[str, Series] = {}
        milli: dict[int, int] = {}
        series: dict[int, Series] = {}
        for project, user, workload, device, amount, node in held:
            if amount <= 0:
                continue
            mine = tuple(
                self._series(scope)
                for scope in (
                    Scope("all"),
                    Scope("project", project=project),
                    Scope("user", user=user),
                    Scope("member", project=project, user=user),
                    Scope("workload", project=project, user=user, workload=workload),
                    Scope("node", node=node),
                )
                if scope.kind != "node" or node
            )
            scopes[workload, device] = mine
            devices[device] = self._series(Scope("device", device=device))
            for one in (*mine, devices[device]):
                milli[one.id] = milli.get(one.id, 0) + amount
                series[one.id] = one
        return _Segment(
            start, _by_workload_and_device(held), scopes, devices, milli, tuple(series.values())
        )


def _count(
    pieces: Sequence[_Piece], whose: tuple[str, str], utilization: float, interval: float
) -> None:
    held = [piece for piece in pieces if whose in piece.segment.held]
    held_s = sum(piece.length_s for piece in held)
    if held_s <= 0:
        return
    # It can only have used the device while it held it, for part of the interval perhaps.
    busy = utilization * interval / held_s
    for piece in held:
        milli = piece.segment.held[whose]
        idle = milli / 1000 if utilization < IDLE_BELOW else 0.0
        for series in piece.segment.scopes[whose]:
            rates = piece.rates[series]
            rates[0] += milli
            rates[1] += busy
            rates[2] += idle


def _by_workload_and_device(held: Sequence[Held]) -> dict[tuple[str, str], int]:
    amounts: dict[tuple[str, str], int] = {}
    for one in held:
        if one.milli > 0:
            key = one.workload, one.device
            amounts[key] = amounts.get(key, 0) + one.milli
    return amounts


def _seconds(start: float, end: float) -> Iterator[tuple[int, float]]:
    """Cut a time at whole seconds.

    >>> list(_seconds(9.75, 11.5))
    [(9, 0.25), (10, 1.0), (11, 0.5)]
    """
    second = int(start)
    while second < end:
        yield second, min(end, second + 1.0) - max(start, second)
        second += 1
