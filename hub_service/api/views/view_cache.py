"""Cache of rendered views, so that queues and concurrent readers cost little.

A workload that was never started depends on its record, its expected start and the reader's rights
alone. Measurements of the rest are reused for a moment while their agents report nothing new;
otherwise only the measured fields are replaced.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from runai.hub_service.api.views.start_forecasts import start_view
from runai.hub_service.model.records import WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import WorkloadView

MAX_VIEWS = 30_000
"""Cached views, of 6 KiB each; beyond that the older half is evicted."""

EVICTIONS_PER_INSERT = 10
"""Evictions per insertion: evicting half at once blocked the event loop for 40 ms."""

MAX_STALE_VIEWS = 100
"""Stale views that are tolerated: they cost less than a search for them."""

MEASURED_FOR_S = 0.4
"""Seconds for which measurements are reused: streams send at most two updates a second."""

K = TypeVar("K")
V = TypeVar("V")

ViewKey = tuple[WorkloadId, bool, bool]
"""Workload, and whether the reader may change it and read it."""

DeviceKey = tuple[str, int, tuple[bool, ...], tuple[bool, str]]
"""Node, index, the reader's view of each holder (() if none), and of other accounts.

The last pair is True if the reader sees the accounts of all other processes, and its own account
("" if none of these processes is its own).
"""


class MeasurementTimes(NamedTuple):
    """Time of a started workload's measurements."""

    at: float
    reported_at: Sequence[float]
    """Last reports of its nodes' agents."""

    def is_recent(self, times: "MeasurementTimes") -> bool:
        """Return True if the measurements may be reused."""
        return self.reported_at == times.reported_at and 0 <= times.at - self.at < MEASURED_FOR_S


class _CachedView(NamedTuple):
    """A view, and the inputs it was rendered from."""

    record: WorkloadRecord
    start: ExpectedStart | None
    inputs: object
    measurement_times: MeasurementTimes | None
    view: WorkloadView


def was_begun(record: WorkloadRecord) -> bool:
    """Return True if a workload was ever started, or is about to be."""
    return record.attempts > 0 or any(worker.state != "pending" for worker in record.workers)


class _FifoCache(OrderedDict[K, V]):
    """FIFO cache of views, bounded by MAX_VIEWS."""

    _evicting = False
    """True while the older half is being evicted."""

    def insert(self, key: K, view: V) -> None:
        """Insert a view, and evict the oldest ones beyond the bound."""
        self[key] = view
        self._evicting = len(self) > (MAX_VIEWS // 2 if self._evicting else MAX_VIEWS)
        for _ in range(EVICTIONS_PER_INSERT if self._evicting else 0):
            self.popitem(last=False)


class ViewCache:
    """Views of workloads and devices, by content and by their readers' rights."""

    def __init__(self) -> None:
        """Start empty."""
        self._views = _FifoCache[ViewKey, _CachedView]()
        self._devices = _FifoCache[DeviceKey, tuple[object, DeviceView]]()
        self._busy: tuple[object, float, Mapping[str, float]] = None, 0.0, {}
        self._search_threshold = MAX_STALE_VIEWS
        """Number of views at which stale ones are searched."""

    def __len__(self) -> int:
        return len(self._views) + len(self._devices)

    def retain(self, records: Sequence[WorkloadRecord]) -> None:
        """Evict views of workloads that are gone or finished; cheap enough for every call.

        It searches only when the number of views has doubled since the last search.
        """
        if len(self._views) <= self._search_threshold:
            return
        retained = {record.id for record in records if not record.attempts or record.has_devices}
        for key in [key for key in self._views if key[0] not in retained]:
            del self._views[key]
        self._search_threshold = 2 * len(self._views) + MAX_STALE_VIEWS

    def view(
        self,
        record: WorkloadRecord,
        rights: tuple[bool, bool],
        start: ExpectedStart | None,
        inputs: object,
        measurement_times: MeasurementTimes | None,
        measure: Callable[[], Mapping[str, Any]],
        render: Callable[[], WorkloadView],
    ) -> WorkloadView:
        """Return the cached view, or render it again if an input changed.

        `rights` are the reader's: change and read. `inputs` are all others, except the expected
        start and the measurements (`measurement_times` or None). If only these two changed, as
        after each forecast, their fields alone are replaced, with the measured ones from `measure`.
        """
        key = (record.id, *rights)
        cached = self._views.get(key)
        if (
            cached is None
            or cached.record is not record
            or cached.inputs != inputs
            or (cached.measurement_times is None) is not (measurement_times is None)
        ):
            view = render()
            self._views.insert(key, _CachedView(record, start, inputs, measurement_times, view))
            return view
        updates: dict[str, Any] = {}
        if cached.start != start:
            updates["expected_start"] = start_view(start) if start else None
        cached_times = cached.measurement_times
        if measurement_times and cached_times and not cached_times.is_recent(measurement_times):
            updates |= measure()
            cached = cached._replace(measurement_times=measurement_times)
        if not updates:
            return cached.view
        view = cached.view.model_copy(update=updates)
        self._views[key] = cached._replace(start=start, view=view)
        return view

    def device(
        self, key: DeviceKey, device_state: object, render: Callable[[], DeviceView]
    ) -> DeviceView:
        """Return a device's cached view, or render it again if its `device_state` changed."""
        cached = self._devices.get(key)
        if cached is not None and cached[0] == device_state:
            return cached[1]
        view = render()
        self._devices.insert(key, (device_state, view))
        return view

    def busy(
        self, at: float, holding: object, measure: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float]:
        """Return the projects' busy GPUs; reused for a moment while the holders are the same."""
        measured_for, measured_at, busy = self._busy
        if measured_for is not holding or not 0 <= at - measured_at < MEASURED_FOR_S:
            busy = measure()
            self._busy = holding, at, busy
        return busy
