"""Views of workloads that have not changed since they were drawn, so that queues cost little.

Only of those that were never started: nothing is measured of them, so their record, their expected
start and what the reader may do say it all. Who has begun is forgotten when next looked at. Kept by
`platform`, asked by `views`.
"""

from collections.abc import Callable, Sequence

from runai.hub_service.api.schemas import WorkloadView
from runai.hub_service.clusters.records import WorkloadRecord
from runai.hub_service.scheduler.explanation import ExpectedStart

__all__ = ["FEW", "DrawnViews"]

MOST = 20_000
"""Views kept at once; then it begins anew."""

FEW = 100
"""So many of workloads that are there no more cost less than looking for them."""

_RIGHTS = ((False, False), (False, True), (True, False), (True, True))


class DrawnViews:
    """What was drawn, by workload and by what its reader may do."""

    def __init__(self) -> None:
        """Begin empty."""
        self._views: dict[
            tuple[str, bool, bool],
            tuple[WorkloadRecord, ExpectedStart | None, object, WorkloadView],
        ] = {}
        self._enough = FEW
        """With more views than this it is time to look for those of nobody."""

    def __len__(self) -> int:
        return len(self._views)

    def retain(self, records: Sequence[WorkloadRecord]) -> None:
        """Forget those of workloads that are no more, or have begun since; call it often.

        It looks only when there are twice as many views as the last time, so it costs next to
        nothing.
        """
        if len(self._views) <= self._enough:
            return
        waiting = {record.id for record in records if not record.attempts}
        self._views = {key: kept for key, kept in self._views.items() if key[0] in waiting}
        self._enough = 2 * len(self._views) + FEW

    def view(
        self,
        record: WorkloadRecord,
        start: ExpectedStart | None,
        site: object,
        rights: tuple[bool, bool],
        draw: Callable[[], WorkloadView],
    ) -> WorkloadView:
        """Return a view, drawn anew where anything is not as it was.

        `site` stands for whatever else is in it and is the same for all; `rights` are what the
        reader may do: change it, and read it.
        """
        if record.attempts or any(worker.state != "pending" for worker in record.workers):
            for other in _RIGHTS:
                self._views.pop((record.id, *other), None)
            return draw()
        key = (record.id, *rights)
        known = self._views.get(key)
        if known is not None and known[0] is record and known[1:3] == (start, site):
            return known[3]
        if len(self._views) >= MOST:
            self._views.clear()
        view = draw()
        self._views[key] = (record, start, site, view)
        return view
