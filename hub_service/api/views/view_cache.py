"""Cache of rendered views, so that queues and concurrent readers cost little.

A workload that was never started depends on its record, its expected start and the reader's rights
alone. Measurements of the rest are reused for a moment while their agents report nothing new;
otherwise only the measured fields are replaced.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from runai.hub_service.api.views.start_views import start_view
from runai.hub_service.model.records import WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import WorkloadView

MOST = 30_000
"""Cached views, of 6 KiB each; beyond that the older half is evicted."""

GO_AT_ONCE = 10
"""Evictions per insertion: evicting half at once blocked the event loop for 40 ms."""

FEW = 100
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
    told: Sequence[float]
    """Last reports of its nodes' agents."""

    def is_recent(self, now: "MeasurementTimes") -> bool:
        """Return True if the measurements may be reused."""
        return self.told == now.told and 0 <= now.at - self.at < MEASURED_FOR_S


class _CachedView(NamedTuple):
    """A view, and the inputs it was rendered from."""

    record: WorkloadRecord
    start: ExpectedStart | None
    said: object
    measured: MeasurementTimes | None
    view: WorkloadView


def was_begun(record: WorkloadRecord) -> bool:
    """Return True if a workload was ever started, or is about to be."""
    return record.attempts > 0 or any(worker.state != "pending" for worker in record.workers)


class _FifoCache(OrderedDict[K, V]):
    """FIFO cache of views, bounded by MOST."""

    _evicting = False
    """True while the older half is being evicted."""

    def insert(self, key: K, view: V) -> None:
        """Insert a view, and evict the oldest ones beyond the bound."""
        self[key] = view
        self._evicting = len(self) > (MOST // 2 if self._evicting else MOST)
        for _ in range(GO_AT_ONCE if self._evicting else 0):
            self.popitem(last=False)


class ViewCache:
    """Views of workloads and devices, by content and by their readers' rights."""

    def __init__(self) -> None:
        """Start empty."""
        self._views = _FifoCache[ViewKey, _CachedView]()
        self._devices = _FifoCache[DeviceKey, tuple[object, DeviceView]]()
        self._busy: tuple[object, float, Mapping[str, float]] = None, 0.0, {}
        self._enough = FEW
        """Number of views at which stale ones are searched."""

    def __len__(self) -> int:
        return len(self._views) + len(self._devices)

    def retain(self, records: Sequence[WorkloadRecord]) -> None:
        """Evict views of workloads that are gone or finished; cheap enough for every call.

        It searches only when the number of views has doubled since the last search.
        """
        if len(self._views) <= self._enough:
            return
        there = {record.id for record in records if not record.attempts or record.has_devices}
        for key in [key for key in self._views if key[0] not in there]:
            del self._views[key]
        self._enough = 2 * len(self._views) + FEW

    def view(
        self,
        record: WorkloadRecord,
        rights: tuple[bool, bool],
        start: ExpectedStart | None,
        said: object,
        measured: MeasurementTimes | None,
        measure: Callable[[], Mapping[str, Any]],
        draw: Callable[[], WorkloadView],
    ) -> WorkloadView:
        """Return the cached view, or render it again if an input changed.

        `rights` are the reader's: change and read. `said` is every other input, except the expected
        start and the measurements (`measured`, None without any). If only these two changed, as
        after each forecast, their fields alone are replaced, with the measured ones from `measure`.
        """
        key = (record.id, *rights)
        known = self._views.get(key)
        if (
            known is None
            or known.record is not record
            or known.said != said
            or (known.measured is None) is not (measured is None)
        ):
            view = draw()
            self._views.insert(key, _CachedView(record, start, said, measured, view))
            return view
        new: dict[str, Any] = {}
        if known.start != start:
            new["expected_start"] = start_view(start) if start else None
        if measured and known.measured and not known.measured.is_recent(measured):
            new |= measure()
            known = known._replace(measured=measured)
        if not new:
            return known.view
        view = known.view.model_copy(update=new)
        self._views[key] = known._replace(start=start, view=view)
        return view

    def device(self, key: DeviceKey, seat: object, draw: Callable[[], DeviceView]) -> DeviceView:
        """Return a device's cached view, or render it again if `seat`, its input, changed."""
        known = self._devices.get(key)
        if known is not None and known[0] == seat:
            return known[1]
        view = draw()
        self._devices.insert(key, (seat, view))
        return view

    def busy(
        self, at: float, holding: object, measure: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float]:
        """Return the projects' busy GPUs; reused for a moment while the holders are the same."""
        known, measured_at, busy = self._busy
        if known is not holding or not 0 <= at - measured_at < MEASURED_FOR_S:
            busy = measure()
            self._busy = holding, at, busy
        return busy
