"""What was drawn lately and is the same now, so that queues and those who look on cost little.

Of a workload that was never started its record, its expected start and what the reader may do say
it all. What is measured of others is shown as it was a moment ago, as long as their agents report
nothing new, and else put in anew alone. Kept by `platform`, asked by `views` and `world`.
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
"""Views kept at once, of 6 KiB each; then the older half is drawn anew."""

GO_AT_ONCE = 10
"""For each new one: all of them at once held everybody up for 40 ms."""

FEW = 100
"""So many of workloads that are there no more cost less than looking for them."""

MEASURED_FOR_S = 0.4
"""As long is what was measured shown again: streams show no more than two a second."""

K = TypeVar("K")
V = TypeVar("V")

ViewKey = tuple[WorkloadId, bool, bool]
"""A workload, and whether the reader may change it, and read it."""

DeviceKey = tuple[str, int, tuple[bool, ...], tuple[bool, str]]
"""Node, number, which of its holders the reader sees, () where they see none, and whose processes
there they know beside those: everybody's, or of an account of their own.
"""


class Measured(NamedTuple):
    """When something was measured of a workload that was begun."""

    at: float
    told: Sequence[float]
    """When its agents have reported last."""

    def is_recent(self, now: "Measured") -> bool:
        """Tell whether it may be shown now, too."""
        return self.told == now.told and 0 <= now.at - self.at < MEASURED_FOR_S


class _Drawn(NamedTuple):
    """A view, and what was true when it was drawn."""

    record: WorkloadRecord
    start: ExpectedStart | None
    said: object
    measured: Measured | None
    view: WorkloadView


def was_begun(record: WorkloadRecord) -> bool:
    """Tell whether a workload was ever started, or is about to be."""
    return record.attempts > 0 or any(worker.state != "pending" for worker in record.workers)


class _Kept(OrderedDict[K, V]):
    """Views by what they are of, oldest first; not too many."""

    _goes = False
    """Whether the older half is about to be dropped."""

    def keep(self, key: K, view: V) -> None:
        """Keep one, and drop the oldest where there are too many."""
        self[key] = view
        self._goes = len(self) > (MOST // 2 if self._goes else MOST)
        for _ in range(GO_AT_ONCE if self._goes else 0):
            self.popitem(last=False)


class DrawnViews:
    """What was drawn, by what is in it and by what its reader may do."""

    def __init__(self) -> None:
        """Begin empty."""
        self._views = _Kept[ViewKey, _Drawn]()
        self._devices = _Kept[DeviceKey, tuple[object, DeviceView]]()
        self._busy: tuple[object, float, Mapping[str, float]] = None, 0.0, {}
        self._enough = FEW
        """With more views than this it is time to look for those of nobody."""

    def __len__(self) -> int:
        return len(self._views) + len(self._devices)

    def retain(self, records: Sequence[WorkloadRecord]) -> None:
        """Forget those of workloads that are no more, or are over; call it often.

        It looks only when there are twice as many views as the last time, so it costs next to
        nothing.
        """
        if len(self._views) <= self._enough:
            return
        there = {record.id for record in records if not record.attempts or record.holds_devices}
        for key in [key for key in self._views if key[0] not in there]:
            del self._views[key]
        self._enough = 2 * len(self._views) + FEW

    def view(
        self,
        record: WorkloadRecord,
        rights: tuple[bool, bool],
        start: ExpectedStart | None,
        said: object,
        measured: Measured | None,
        measure: Callable[[], Mapping[str, Any]],
        draw: Callable[[], WorkloadView],
    ) -> WorkloadView:
        """Return a view, drawn anew where anything is not as it was.

        `rights` are what the reader may do: change it, and read it. `said` is all else that is in
        it; but for what is measured, None where nothing is, and the fields that `measure` gives.
        Where those are all that is new, or its expected start, as with each forecast, they alone
        are put into what was drawn.
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
            self._views.keep(key, _Drawn(record, start, said, measured, view))
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
        """Return a device's view, drawn anew where `seat`, all that is in it, is not as it was."""
        known = self._devices.get(key)
        if known is not None and known[0] == seat:
            return known[1]
        view = draw()
        self._devices.keep(key, (seat, view))
        return view

    def busy(
        self, at: float, holding: object, measure: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float]:
        """Return what projects keep busy, measured a moment ago if the same hold devices."""
        known, measured_at, busy = self._busy
        if known is not holding or not 0 <= at - measured_at < MEASURED_FOR_S:
            busy = measure()
            self._busy = holding, at, busy
        return busy
