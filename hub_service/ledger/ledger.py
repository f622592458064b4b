"""Ledger of usage: record allocations and reports, answer queries, drop old rows.

The controller records each change of allocation, the API each agent's report. Totals are summed in
memory and added to the database every ten seconds; time not written before a crash is a gap. Not
thread-safe: one event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn, ParamSpec, TypeVar

from runai.hub_service.ledger import query
from runai.hub_service.ledger.access import Access
from runai.hub_service.ledger.integration import IDLE_BELOW, DeviceAllocation, Integration
from runai.hub_service.ledger.past_workloads import PastRequest, PastWorkloadRecord
from runai.hub_service.ledger.query import Usage, UsageFilter
from runai.hub_service.ledger.store import Event, Forgotten, LedgerStore, WriteBatch
from runai.hub_service.ledger.totals import Scope, Series, Totals
from runai.hub_service.wire.reports import AgentReport

P = ParamSpec("P")
T = TypeVar("T")

WRITE_S = 10
MAX_ANSWER_AGE_S = 2.0
"""Largest age of the data in a query's answer: older unwritten amounts are written first."""

MAX_WAITING_WINDOWS = 3600 // WRITE_S
"""Windows kept while writes fail: one hour. Older windows are dropped, which leaves a gap."""

DROP_OLD_EVERY_S = 3600
"""Interval between two deletions of old rows."""
RECENT_S = 10.0
"""Largest age of a measurement that counts as current."""

MAX_WAITING_EVENTS = 10_000


class Ledger:
    """Usage and history, in memory and in one database."""

    def __init__(self, database: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open an SQLite file (a Path) or any database by its SQLAlchemy address.

        Without a reachable database the ledger starts in memory only; `flush` opens it later.

        Raises:
            Unavailable: the database is broken, of a newer version, or refuses our login.
        """
        self._clock = clock
        self._store = LedgerStore(database, later=True)
        self._access = Access(self._store)
        self._batch = WriteBatch()
        """Unwritten events and requests; the unwritten amounts are in `_integration`."""
        self._writing = asyncio.Lock()
        self._written_at = 0.0
        self._integration = Integration(self._series)
        self._by_scope: dict[Scope, Series] = {}
        self._by_workload: dict[str, Series] = {}
        # Each with its time, utilization and MiB.
        self._latest_samples: dict[tuple[str, str], tuple[float, float | None, int | None]] = {}
        self._latest_devices: dict[str, tuple[float, float | None, int | None]] = {}
        self._active_at: dict[str, float] = {}
        self._dropped_old_at = 0.0
        self._merge(self._access.open())

    def _merge(self, stored: Sequence[Series]) -> None:
        """Merge the stored series with the amounts counted before the database was open."""
        forgotten = {workload.workload for workload in self._batch.forgotten}
        for series in stored:
            if series.scope.workload in forgotten:
                continue
            existing = self._by_scope.get(series.scope)
            if existing is None:
                self._index(series)
            else:
                existing.id, existing.opened, existing.base = series.id, series.opened, series.base

    def _index(self, series: Series) -> None:
        self._by_scope[series.scope] = series
        if series.scope.kind == "workload":
            self._by_workload[series.scope.workload] = series

    # -- input -----------------------------------------------------------------------------------

    def record(
        self,
        at: float,
        interval: float,
        allocated: Sequence[DeviceAllocation],
        report: AgentReport | None = None,
    ) -> None:
        """Set the cluster's allocation from `at` on, and add a report of earlier use.

        `at` is the service's time. `allocated` is the complete allocation of the cluster; the
        previous one counts until `at`. `interval` repeats the report's and is ignored. Reports may
        arrive late, twice, or never.
        """
        del interval
        self._integration.set_allocations(at, allocated)
        if report is not None:
            self._integration.add_report(report)
            self._note_latest(report)

    def _note_latest(self, report: AgentReport) -> None:
        """Store a recent report's figures as the current ones."""
        now = self._clock()
        if report.at < now - RECENT_S:
            return
        for sample in report.samples:
            key = sample.workload, sample.device
            self._latest_samples[key] = (now, sample.utilization, sample.memory_mib)
        for device in report.devices:
            self._latest_devices[device.device] = (now, device.utilization, device.memory_mib)
            if (device.utilization or 0.0) >= IDLE_BELOW:
                self._active_at[device.device] = report.at

    def event(
        self,
        workload: str,
        kind: str,
        text: str,
        *,
        at: float | None = None,
        project: str = "",
        user: str = "",
    ) -> None:
        """Record an event of a workload; events outlive the workload's deletion."""
        if len(self._batch.events) < MAX_WAITING_EVENTS:
            happened = self._clock() if at is None else at
            self._batch.events.append(Event(happened, workload, kind, text, project, user))

    def record_request(self, workload: str, request: PastRequest) -> None:
        """Record a workload's request; it replaces an earlier version of the same submission."""
        if len(self._batch.requests) < MAX_WAITING_EVENTS:
            self._batch.requests[workload, request.submitted] = request

    def reclaim(self, at: float, project: str, gpu_seconds: float) -> None:
        """Add a project's GPU-seconds that other projects used instead of leaving them idle."""
        self._integration.reclaim(
            at, self._series(Scope("reclaimed", project=project)), gpu_seconds
        )

    def reclaimed(self) -> float:
        """Return all GPU-seconds ever reclaimed."""
        totals_of_all = (s.totals for s in self._by_scope.values() if s.scope.kind == "reclaimed")
        return sum(totals.idle_s for totals in totals_of_all)

    def forget(self, workload: str) -> None:
        """Close a deleted workload's series: a later workload of that name starts from zero."""
        series = self._by_workload.pop(workload, None)
        if series is not None:
            del self._by_scope[series.scope]
            self._integration.request_rebuild()
        if series is not None or not self._access.is_open:
            self._batch.forgotten.append(Forgotten(workload, self._clock(), series))

    # -- queries ---------------------------------------------------------------------------------

    def current(self, workload: str) -> tuple[float, int | None] | None:
        """Return a workload's current busy GPUs and memory in MiB; None: not measured."""
        since = self._clock() - RECENT_S
        samples = [
            sample
            for device in self._integration.devices_of(workload)
            if (sample := self._latest_samples.get((workload, device))) is not None
            and sample[0] > since
        ]
        busy = [utilization for _, utilization, _ in samples if utilization is not None]
        memory_mib = [memory for _, _, memory in samples if memory is not None]
        return (sum(busy), sum(memory_mib) if memory_mib else None) if busy else None

    def average(self, workload: str) -> float | None:
        """Return a workload's average of busy GPUs while allocated; None: never measured."""
        totals = self.totals(workload)
        return totals.used_s / totals.measured_s if totals.measured_s > 0 else None

    def totals(self, workload: str) -> Totals:
        """Return a workload's accumulated usage; zeros before its first allocation.

        It includes usage from before a restart of the service, unlike `totals_since_open`.
        """
        series = self._by_workload.get(workload)
        return Totals() if series is None else self._settled(series).totals

    def totals_since_open(
        self, kind: Literal["project", "node", "workload", "reclaimed"]
    ) -> Mapping[str, Totals]:
        """Return the totals since this ledger was opened, by name.

        They start from zero, like all counters of a process: stored totals can shrink in a crash,
        and Prometheus would take that for a counter reset.
        """
        self._integration.advance(self._clock())
        name = "project" if kind == "reclaimed" else kind
        return {
            getattr(scope, name): self._settled(series).accrued
            for scope, series in self._by_scope.items()
            if scope.kind == kind
        }

    def names(self, kind: Literal["project", "user", "node"]) -> list[str]:
        """Return all names that ever had an allocation, sorted."""
        scopes = (scope for scope in self._by_scope if scope.kind == kind)
        return sorted(getattr(scope, kind) for scope in scopes)

    def workloads(self) -> list[str]:
        """Return the workloads that ever had an allocation, without deleted ones."""
        return list(self._by_workload)

    def reported(self) -> Mapping[str, float]:
        """Return the end of each node's newest report, in Unix seconds."""
        return self._integration.measured_until

    def last_active(self, uuid: str) -> float | None:
        """Return the last time at which a device was busy; None: never since the start."""
        return self._active_at.get(uuid)

    def device(self, uuid: str) -> tuple[float | None, int | None] | None:
        """Return a device's current utilization (0..1) and memory in MiB; None: not measured."""
        at, utilization, memory = self._latest_devices.get(uuid, (0.0, None, None))
        return (utilization, memory) if at > self._clock() - RECENT_S else None

    def unhealthy_reason(self) -> str:
        """Return why the last read or write of the database failed; "" if it succeeded."""
        return self._access.trouble

    async def usage(
        self, usage_filter: UsageFilter, since: float, until: float, step_s: int | None = None
    ) -> Usage:
        """Return allocated and utilized GPUs over a range.

        The range is aligned to the finest windows stored for its age, and the step is lengthened
        if there would be more than 1500 points; the result contains the actual range and step.
        Without `step_s` there are about 300 points.
        """
        query_range = query.choose_range(since, until, step_s, now=self._clock())
        return query.usage(
            usage_filter.scope,
            query_range,
            *await self._read_current(self._store.sums, usage_filter.scope, query_range),
        )

    async def events(self, workload: str, *, since: float = 0.0, limit: int = 1000) -> list[Event]:
        """Return the newest events of a workload and its earlier namesakes, oldest first."""
        return await self._read_current(self._store.events_of, workload, since, limit)

    async def past(self, since: float) -> list[PastWorkloadRecord]:
        """Return the workloads with an allocation after a time, oldest first."""
        level = query.grid_of(self._clock() - since)
        return await self._read_current(self._store.past_workloads, since, level)

    async def _read_current(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write recent amounts, then read; while the database fails, only `flush` writes."""
        async with self._writing:
            has_events = self._batch.forgotten or self._batch.events or self._batch.requests
            is_due = has_events or abs(self._clock() - self._written_at) >= MAX_ANSWER_AGE_S
            if is_due and not self._access.trouble:
                await self._write()
        return await self._access.run_read(read, *args, **kwargs)

    # -- writes ----------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Write every ten seconds and delete old rows every hour, until cancelled; call once."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.flush()
            if self._clock() - self._dropped_old_at >= DROP_OLD_EVERY_S:
                self._dropped_old_at = self._clock()
                await asyncio.to_thread(self._access.drop_old, self._dropped_old_at)

    async def flush(self) -> None:
        """Write the amounts counted so far; keep them for the next try if that fails."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        """Write the current batch; open the database first if it was unreachable."""
        if not self._access.is_open:
            self._merge(await asyncio.to_thread(self._access.open, again=True))
        batch = self._collect()
        writing = asyncio.ensure_future(asyncio.to_thread(self._access.write, batch))
        try:
            await asyncio.shield(writing)
        finally:
            # Wait even when cancelled: the thread goes on, and a second write would count twice.
            await asyncio.wait([writing])
            self._finish_write(batch, writing.result())
            self._written_at = self._clock()

    def close(self) -> None:
        """Write the remaining amounts and close the database; repeated calls do nothing."""
        batch = self._collect()
        self._finish_write(batch, self._access.write(batch, is_last=True))
        self._access.is_open = False
        self._store.close()

    def _collect(self) -> WriteBatch:
        """Return the unwritten amounts, events and requests, and start a new batch."""
        now = self._clock()
        self._integration.advance(now)
        self._latest_samples = {
            k: v for k, v in self._latest_samples.items() if v[0] > now - RECENT_S
        }
        batch, self._batch = self._batch, WriteBatch()
        batch.amounts = self._integration.collect()
        return batch

    def _finish_write(self, batch: WriteBatch, ids: Mapping[Series, int] | None) -> None:
        """Store the ids of new series; requeue the batch if `ids` is None: the write failed."""
        if ids is not None:
            for series, id_ in ids.items():
                series.id = id_
            return
        self._integration.requeue(batch.amounts, MAX_WAITING_WINDOWS)
        newer, self._batch = self._batch, batch
        batch.amounts = {}
        batch.forgotten += newer.forgotten
        batch.events += newer.events
        batch.requests |= newer.requests

    def _settled(self, series: Series) -> Series:
        """Add the allocation up to now to a series, and return it."""
        series.settle(self._integration.at)
        return series

    def _series(self, scope: Scope) -> Series:
        """Return the series of a scope; create it if it is missing."""
        series = self._by_scope.get(scope)
        if series is None:
            series = Series(scope, self._clock())
            self._index(series)
        return series
