"""Turn allocations and agents' measurements into the running totals of each scope.

Allocation is a step function of the service's clock, so it is exact without any agent. A report
says how busy devices were over its interval; it counts for whoever held them then, also when it
comes late or twice. Time that nobody witnessed is a gap. No I/O and no clock: `Ledger` drives it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runai.hub_service.ledger.totals import Scope, Series, Totals, window_of, windows
from runai.hub_service.wire.agent_reports import AgentReport

GAP_S = 60.0
"""A silence longer than this (a machine asleep) is a gap in the history."""

REMEMBER_S = 15 * 60.0
"""How late a report may be and still count for the former holders of its devices."""

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


@dataclass(frozen=True, slots=True)
class _Segment:
    """A time during which allocation did not change; it ends where the next one starts."""

    start: float
    held: Mapping[tuple[str, str], int]
    """Milli-GPU by workload and device."""
    scopes: Mapping[tuple[str, str], tuple[Series, ...]]
    """By workload and device the series that it counts for, the device's own left out."""
    devices: Mapping[str, Series]
    milli: Mapping[Series, int]
    """Milli-GPU of each series that holds anything; none during a gap."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a report's time in which allocation did not change, and what is counted for it.

    A hundred samples count for the whole, and tens for a project: they are added up here first, so
    that each series is told once.
    """

    segment: _Segment
    length_s: float
    windows: Sequence[tuple[int, float]]
    """It, cut at the ends of windows."""
    rates: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0] * 3))
    """Milli-GPU that were measured, devices that were busy and GPUs that were idle."""


class Integration:
    """The state of the sums: what is held now, and since when that is so."""

    def __init__(self, series: Callable[[Scope], Series]) -> None:
        """Take the function that returns a scope's series, making it if need be."""
        self._series = series
        self._segments: deque[_Segment] = deque()
        self.measured_until: dict[str, float] = {}
        """By node."""
        self._ask_again = False
        self._given: Sequence[Held] | None = None
        """The list last given to `hold`; the same list says the same."""
        self.at = 0.0
        """Until when it was watched."""
        self._changed: set[Series] = set()
        self._listed: Mapping[tuple[str, str], int] = {}
        self._devices_of: dict[str, list[str]] = {}
        """Of each workload, as they were `_listed` last."""

    def devices_of(self, workload: str) -> Sequence[str]:
        """Return the devices that a workload holds now."""
        held = self._segments[-1].held if self._segments else {}
        if self._listed is not held:
            self._listed, self._devices_of = held, {}
            for holder, device in held:
                self._devices_of.setdefault(holder, []).append(device)
        return self._devices_of.get(workload, ())

    @property
    def changed(self) -> set[Series]:
        """The series that have something to be written, as all have that hold."""
        return self._changed.union(self._segments[-1].milli if self._segments else ())

    def collect(self) -> dict[Series, dict[int, Totals]]:
        """Return what is to be written of each series by window, and begin to collect anew."""
        found = {}
        for series in self.changed:
            series.settle(self.at)
            if series.waiting:
                found[series], series.waiting = series.waiting, {}
        self._changed.clear()
        return found

    def put_back(self, collected: Mapping[Series, Mapping[int, Totals]], most: int) -> None:
        """Let amounts that could not be written wait again, of so many windows, the newest."""
        self._changed.update(collected)
        windows = sorted({window for amounts in collected.values() for window in amounts})
        kept = frozenset(windows[-most:])
        for series, amounts in collected.items():
            for window, amount in amounts.items():
                if window in kept:
                    series.wait(window, amount)

    def advance(self, at: float) -> None:
        """Note that it was watched until `at`; an earlier time changes nothing."""
        if not self._segments:
            self.at = at
            self._begin(self._segment(at, ()))
        if at - self.at > GAP_S:
            last = self._segments[-1]
            self._begin(_Segment(self.at, {}, {}, {}, {}))
            self.at = at
            self._begin(replace(last, start=at))
        self.at = max(at, self.at)
        while len(self._segments) > 1 and self._segments[1].start < at - REMEMBER_S:
            self._segments.popleft()

    def hold(self, at: float, held: Sequence[Held]) -> None:
        """Note that from `at` on exactly this is held."""
        self.advance(at)
        if held is self._given and not self._ask_again:
            return
        if self._ask_again or _by_workload_and_device(held) != self._segments[-1].held:
            self._begin(self._segment(self.at, held))
            self._ask_again = False
        self._given = held  # not before: what could not be noted is noted the next time

    def _begin(self, segment: _Segment) -> None:
        last = self._segments[-1].milli if self._segments else {}
        for series in last.keys() - segment.milli.keys():
            series.hold(self.at, 0.0)
            self._changed.add(series)
        for series, milli in segment.milli.items():
            series.hold(self.at, milli / 1000)
        self._segments.append(segment)

    def ask_again(self) -> None:
        """Note that scopes have other series from now on, though the same may be held."""
        self._ask_again = True

    def reclaim(self, at: float, series: Series, gpu_seconds: float) -> None:
        """Count GPU-seconds that were not left idle until `at`."""
        series.add([(window_of(at), 1.0)], Totals(idle_s=gpu_seconds))
        self._changed.add(series)

    def measure(self, report: AgentReport) -> None:
        """Count one report; one that was counted already changes nothing."""
        end = min(report.at, self.at)
        start = max(report.at - report.interval, self.measured_until.get(report.node, 0.0))
        if end <= start:
            return
        self.measured_until[report.node] = end
        pieces = [
            _Piece(segment, to - from_, windows(from_, to))
            for segment, from_, to in self._between(start, end)
            if segment.milli
        ]
        for sample in report.samples:
            if sample.utilization is not None:
                _count(pieces, (sample.workload, sample.device), sample.utilization, end - start)
        for device in report.devices:
            if device.utilization is not None:
                self._count_device(pieces, device.device, device.utilization)
        for piece in pieces:
            for series, (measured, used, idle) in piece.rates.items():
                of_it = measured / piece.segment.milli[series] if measured else 0.0
                series.add(piece.windows, Totals(measured_s=of_it, used_s=used, idle_s=idle))
            self._changed.update(piece.rates)

    def _count_device(self, pieces: Sequence[_Piece], device: str, utilization: float) -> None:
        for piece in pieces:
            holder = piece.segment.devices.get(device)
            if holder is None and utilization <= 0:
                continue
            rates = piece.rates[holder or self._series(Scope("device", device=device))]
            rates[1] += utilization
            if holder is not None:
                milli = piece.segment.milli[holder]
                rates[0] += milli
                if utilization < IDLE_BELOW:
                    rates[2] += milli / 1000

    def _between(self, start: float, end: float) -> Iterator[tuple[_Segment, float, float]]:
        until = self.at
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
        milli = {self._series(Scope("watched")): 1000}
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
                milli[one] = milli.get(one, 0) + amount
        return _Segment(start, _by_workload_and_device(held), scopes, devices, milli)


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
