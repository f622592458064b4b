"""Integration of allocations and agents' measurements into the running totals of each scope.

Allocation is a step function of the service's clock, so it is exact without any agent. A report has
the load of devices over its interval and counts for the workloads allocated then, also if it
arrives late or twice. Time without the service is a gap. No I/O and no clock.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runai.hub_service.ledger.totals import Scope, Series, Totals, window_of, windows
from runai.hub_service.wire.reports import AgentReport

GAP_S = 60.0
"""Longest time between two updates. A longer one (a sleeping machine) is a gap in the history."""

REMEMBER_S = 15 * 60.0
"""Largest delay at which a report still counts for the devices' former workloads."""

IDLE_BELOW = 0.01
"""Load below which an allocated device counts as idle."""


class DeviceAllocation(NamedTuple):
    """Allocation of one device to one workload; amounts of several workers add up."""

    project: str
    user: str
    workload: str
    device: str
    milli: int
    node: str = ""
    """Node of the device; "" if unknown."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """A period of constant allocation; it ends where the next one starts."""

    start: float
    allocated: Mapping[tuple[str, str], int]
    """Milli-GPU by workload and device."""
    scopes: Mapping[tuple[str, str], tuple[Series, ...]]
    """Series of each workload and device, without the device's own series."""
    devices: Mapping[str, Series]
    milli: Mapping[Series, int]
    """Milli-GPU of each allocated series; empty during a gap."""


@dataclass(slots=True)
class _Rates:
    """Rates of one series during a piece."""

    measured_milli: float = 0.0
    """Milli-GPU of the workloads and devices that were measured."""
    busy_devices: float = 0.0
    idle_gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a report's interval with constant allocation, and the rates measured in it.

    Hundreds of samples count for the cluster, tens for a project: they are summed here first, so
    that each series is updated once.
    """

    segment: _Segment
    length_s: float
    windows: Sequence[tuple[int, float]]
    """The piece, split at the ends of windows."""
    rates: dict[Series, _Rates] = field(default_factory=lambda: defaultdict(_Rates))


class Integration:
    """Current allocation and the recent history that late reports need."""

    def __init__(self, series: Callable[[Scope], Series]) -> None:
        """Use `series` to get a scope's series; it creates missing ones."""
        self._series = series
        self._segments: deque[_Segment] = deque()
        self.measured_until: dict[str, float] = {}
        """End of the newest report, by node."""
        self._must_rebuild = False
        self._last_allocations: Sequence[DeviceAllocation] | None = None
        """The list last passed to `set_allocations`; the identical list needs no comparison."""
        self.at = 0.0
        """End of the integrated time."""
        self._changed: set[Series] = set()
        self._indexed: Mapping[tuple[str, str], int] = {}
        """Allocation that `_devices_of` was built from."""
        self._devices_of: dict[str, list[str]] = {}
        """Devices by workload."""

    def devices_of(self, workload: str) -> Sequence[str]:
        """Return the devices allocated to a workload now."""
        allocated = self._segments[-1].allocated if self._segments else {}
        if self._indexed is not allocated:
            self._indexed, self._devices_of = allocated, {}
            for holder, device in allocated:
                self._devices_of.setdefault(holder, []).append(device)
        return self._devices_of.get(workload, ())

    @property
    def changed(self) -> set[Series]:
        """Series with unwritten amounts, which include all series with an allocation."""
        return self._changed.union(self._segments[-1].milli if self._segments else ())

    def collect(self) -> dict[Series, dict[int, Totals]]:
        """Return and clear the unwritten amounts of each series, by window."""
        collected = {}
        for series in self.changed:
            series.settle(self.at)
            if series.unwritten:
                collected[series], series.unwritten = series.unwritten, {}
        self._changed.clear()
        return collected

    def requeue(self, collected: Mapping[Series, Mapping[int, Totals]], max_windows: int) -> None:
        """Requeue amounts whose write failed, for the newest `max_windows` windows."""
        self._changed.update(collected)
        windows = sorted({window for amounts in collected.values() for window in amounts})
        retained = frozenset(windows[-max_windows:])
        for series, amounts in collected.items():
            for window, amount in amounts.items():
                if window in retained:
                    series.enqueue(window, amount)

    def advance(self, at: float) -> None:
        """Extend the integrated time to `at`; an earlier time changes nothing."""
        if not self._segments:
            self.at = at
            self._begin_segment(self._build_segment(at, ()))
        if at - self.at > GAP_S:
            interrupted = self._segments[-1]
            self._begin_segment(_Segment(self.at, {}, {}, {}, {}))  # the gap
            self.at = at
            self._begin_segment(replace(interrupted, start=at))
        self.at = max(at, self.at)
        while len(self._segments) > 1 and self._segments[1].start < at - REMEMBER_S:
            self._segments.popleft()

    def set_allocations(self, at: float, allocations: Sequence[DeviceAllocation]) -> None:
        """Set the complete allocation of the cluster from `at` on."""
        self.advance(at)
        if allocations is self._last_allocations and not self._must_rebuild:
            return
        if (
            self._must_rebuild
            or _by_workload_and_device(allocations) != self._segments[-1].allocated
        ):
            self._begin_segment(self._build_segment(self.at, allocations))
            self._must_rebuild = False
        self._last_allocations = allocations  # last: after an exception the next call tries again

    def _begin_segment(self, segment: _Segment) -> None:
        """Append a segment, and set the GPUs of its series and of those that end."""
        last = self._segments[-1].milli if self._segments else {}
        for series in last.keys() - segment.milli.keys():
            series.set_gpus(self.at, 0.0)
            self._changed.add(series)
        for series, milli in segment.milli.items():
            series.set_gpus(self.at, milli / 1000)
        self._segments.append(segment)

    def request_rebuild(self) -> None:
        """Rebuild the segment at the next `set_allocations`: the scopes' series have changed."""
        self._must_rebuild = True

    def reclaim(self, at: float, series: Series, gpu_seconds: float) -> None:
        """Add GPU-seconds that reclaiming kept from being idle, in the window of `at`."""
        series.add([(window_of(at), 1.0)], Totals(idle_s=gpu_seconds))
        self._changed.add(series)

    def add_report(self, report: AgentReport) -> None:
        """Add one report; a repeated report changes nothing."""
        end = min(report.at, self.at)
        start = max(report.at - report.interval, self.measured_until.get(report.node, 0.0))
        if end <= start:
            return
        self.measured_until[report.node] = end
        pieces = [
            _Piece(segment, to - from_, windows(from_, to))
            for segment, from_, to in self._segments_between(start, end)
            if segment.milli
        ]
        for sample in report.samples:
            if sample.utilization is not None:
                _add_sample(
                    pieces, (sample.workload, sample.device), sample.utilization, end - start
                )
        for device in report.devices:
            if device.utilization is not None:
                self._add_device_sample(pieces, device.device, device.utilization)
        for piece in pieces:
            for series, rates in piece.rates.items():
                milli = rates.measured_milli
                totals = Totals(
                    measured_s=milli / piece.segment.milli[series] if milli else 0.0,
                    used_s=rates.busy_devices,
                    idle_s=rates.idle_gpus,
                )
                series.add(piece.windows, totals)
            self._changed.update(piece.rates)

    def _add_device_sample(self, pieces: Sequence[_Piece], device: str, utilization: float) -> None:
        """Add a whole device's load to its series; devices without holders count if busy."""
        for piece in pieces:
            holder = piece.segment.devices.get(device)
            if holder is None and utilization <= 0:
                continue
            rates = piece.rates[holder or self._series(Scope("device", device=device))]
            rates.busy_devices += utilization
            if holder is not None:
                milli = piece.segment.milli[holder]
                rates.measured_milli += milli
                if utilization < IDLE_BELOW:
                    rates.idle_gpus += milli / 1000

    def _segments_between(
        self, start: float, end: float
    ) -> Iterator[tuple[_Segment, float, float]]:
        """Yield the segments in a time range, newest first, each with its start and end there."""
        until = self.at
        for segment in reversed(self._segments):
            from_, to = max(start, segment.start), min(end, until)
            if from_ < to:
                yield segment, from_, to
            if segment.start <= start:
                return
            until = segment.start

    def _build_segment(self, start: float, allocations: Sequence[DeviceAllocation]) -> _Segment:
        """Build the segment that starts with these allocations, and create missing series."""
        scopes: dict[tuple[str, str], tuple[Series, ...]] = {}
        devices: dict[str, Series] = {}
        milli = {self._series(Scope("watched")): 1000}
        for project, user, workload, device, amount, node in allocations:
            if amount <= 0:
                continue
            workload_series = tuple(
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
            scopes[workload, device] = workload_series
            devices[device] = self._series(Scope("device", device=device))
            for series in (*workload_series, devices[device]):
                milli[series] = milli.get(series, 0) + amount
        return _Segment(start, _by_workload_and_device(allocations), scopes, devices, milli)


def _add_sample(
    pieces: Sequence[_Piece], key: tuple[str, str], utilization: float, interval: float
) -> None:
    """Add one sample of a workload and device, the `key`, in a report of `interval` seconds."""
    allocated_pieces = [piece for piece in pieces if key in piece.segment.allocated]
    allocated_s = sum(piece.length_s for piece in allocated_pieces)
    if allocated_s <= 0:
        return
    # The load falls on the pieces with an allocation, possibly a part of the interval only.
    busy_devices = utilization * interval / allocated_s
    for piece in allocated_pieces:
        milli = piece.segment.allocated[key]
        idle_gpus = milli / 1000 if utilization < IDLE_BELOW else 0.0
        for series in piece.segment.scopes[key]:
            rates = piece.rates[series]
            rates.measured_milli += milli
            rates.busy_devices += busy_devices
            rates.idle_gpus += idle_gpus


def _by_workload_and_device(allocations: Sequence[DeviceAllocation]) -> dict[tuple[str, str], int]:
    amounts: dict[tuple[str, str], int] = {}
    for allocation in allocations:
        if allocation.milli > 0:
            key = allocation.workload, allocation.device
            amounts[key] = amounts.get(key, 0) + allocation.milli
    return amounts
