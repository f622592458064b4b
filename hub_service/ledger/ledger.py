"""The ledger: takes what is held and measured, answers how much was used, forgets in time.

Fed by the controller at each change of allocation and by the API with each agent's report. Sums in
memory, writes one batch every ten seconds; after a restart it goes on from the last one, and the
time between is a gap. Of several on one database only the last to be opened writes, the others
never again (`owner`). Not thread-safe: one event loop.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from runai.hub_service.api.reports import AgentReport
from runai.hub_service.ledger import query
from runai.hub_service.ledger.integration import IDLE_BELOW, Held, Integration, Span
from runai.hub_service.ledger.past import Asked, Past, merged
from runai.hub_service.ledger.query import Range, Usage, UsageFilter
from runai.hub_service.ledger.reading import Reader
from runai.hub_service.ledger.store import Event, Row, Store, Stored
from runai.hub_service.ledger.totals import LEVELS_S, MEMORY_S, Scope, Series, Totals
from runai.hub_service.ledger.writing import Writer

WRITE_S = LEVELS_S[0]
LATE_S = 3
"""How long after its end a stretch is written: reports of it should be in."""

IDLE_WRITE_S = 60
"""How often the end of the watched time is written while nothing is held."""

RETENTION_S = 3600
RECENT_S = 10.0
"""A measurement older than this does not say what is now."""

MAX_WAITING_EVENTS = 10_000


class Ledger:
    """Usage and history, in memory and in one database."""

    def __init__(self, database: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open a SQLite file (a Path) or any database by its SQLAlchemy address.

        Where it is away the ledger begins without it, and takes it when it answers (`flush`).

        Raises:
            Unavailable: it is broken, of a newer version, or refuses us.
        """
        self._clock = clock
        self._store = Store(database, later=True)
        self._reader = Reader()
        self._writer = Writer(self._store, self._reader)
        self._latest: dict[tuple[str, str], tuple[float, float | None, int | None]] = {}
        self._devices: dict[str, tuple[float, float | None, int | None]] = {}
        self._active: dict[str, float] = {}
        self._retained_at = 0.0
        self._forgotten: set[str] = set()
        """Workloads that were forgotten before the database was there."""
        self._go_on(self._writer.take())

    def _go_on(self, stored: Stored) -> None:
        """Begin to count, from what is stored."""
        self._last_id, self._first_span = stored.last_series, stored.last_span + 1
        self._by_scope = {series.scope: series for series in stored.series}
        self._by_workload = {
            s.scope.workload: s for s in self._by_scope.values() if s.scope.kind == "workload"
        }
        self._sums = Integration(self._series)
        self._opened = self._clock()
        # The last stretch is written anew if it is not over yet; never one before it.
        now = int(self._opened) // WRITE_S * WRITE_S
        self._sums.closed_until = max(stored.last_at - WRITE_S, now)
        self._before = {scope: series.now(self._opened) for scope, series in self._by_scope.items()}
        self._span_written_until = self._sums.closed_until

    def _begin_anew(self, stored: Stored) -> None:
        """Go on from what is stored with what is held; what was counted until now is a gap."""
        before = self._sums
        self._go_on(stored)
        self._sums.measured_until = before.measured_until
        for workload in self._forgotten:
            self.forget(workload)
        self._forgotten.clear()
        if before.given is not None:
            self._sums.hold(self._clock(), before.given)

    # -- what comes in ---------------------------------------------------------------------------

    def record(
        self,
        at: float,
        interval: float,
        allocated: Sequence[Held],
        report: AgentReport | None = None,
    ) -> None:
        """Note that `allocated` is held from `at` on, and count a report of what was used before.

        `at` is the service's own time. `allocated` is everything held in the whole cluster; until
        `at` what was recorded last counts. `interval` is the report's and says nothing new.
        Reports may come late, twice, or never.
        """
        del interval
        self._sums.hold(at, allocated)
        if report is not None:
            self._sums.measure(report)
            self._note_latest(report)

    def _note_latest(self, report: AgentReport) -> None:
        now = self._clock()
        if report.at < now - RECENT_S:
            return
        for sample in report.samples:
            key = sample.workload, sample.device
            self._latest[key] = (now, sample.utilization, sample.memory_mib)
        for device in report.devices:
            self._devices[device.device] = (now, device.utilization, device.memory_mib)
            if (device.utilization or 0.0) >= IDLE_BELOW:
                self._active[device.device] = report.at

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
        """Keep something that happened to a workload; it survives the workload's deletion."""
        if len(self._writer.batch.events) < MAX_WAITING_EVENTS:
            happened = self._clock() if at is None else at
            self._writer.batch.events.append(Event(happened, workload, kind, text, project, user))

    def asked(self, workload: str, asked: Asked) -> None:
        """Keep what a workload asked for, over what was kept of it before."""
        if len(self._writer.batch.requests) < MAX_WAITING_EVENTS:
            self._writer.batch.requests[workload, asked.submitted] = asked

    def reclaim(self, at: float, project: str, gpu_seconds: float) -> None:
        """Count what would have been idle for a project, had it not been given to others."""
        self._sums.reclaim(at, self._series(Scope("reclaimed", project=project)), gpu_seconds)

    def reclaimed(self) -> float:
        """Return the GPU-seconds that were reclaimed ever."""
        return sum(
            self._now(s).idle_s for s in self._by_scope.values() if s.scope.kind == "reclaimed"
        )

    def forget(self, workload: str) -> None:
        """Note that a workload was deleted: a later one of its name starts from zero."""
        if not self._reader.is_open:
            self._forgotten.add(workload)
        series = self._by_workload.pop(workload, None)
        if series is not None:
            del self._by_scope[series.scope]
            self._before.pop(series.scope, None)
            series.closed = True
            self._writer.batch.closed[series.id] = self._clock()
            self._sums.touch(series)
            self._sums.ask_again()

    # -- what can be asked -----------------------------------------------------------------------

    def current(self, workload: str) -> tuple[float, int | None] | None:
        """Return the GPUs that a workload keeps busy now and its MiB; None: not measured."""
        since = self._clock() - RECENT_S
        recent = [
            latest
            for device in self._sums.devices_of(workload)
            if (latest := self._latest.get((workload, device))) is not None and latest[0] > since
        ]
        busy = [utilization for _, utilization, _ in recent if utilization is not None]
        held = [memory for _, _, memory in recent if memory is not None]
        return (sum(busy), sum(held) if held else None) if busy else None

    def average(self, workload: str) -> float | None:
        """Return the GPUs that it kept busy on average while it held any; None: never measured."""
        totals = self.totals(workload)
        return totals.used_s / totals.measured_s if totals.measured_s > 0 else None

    def totals(self, workload: str) -> Totals:
        """Return a workload's running totals: counters for /metrics."""
        series = self._by_workload.get(workload)
        return Totals() if series is None else self._now(series)

    def counted(
        self, kind: Literal["project", "node", "workload", "reclaimed"]
    ) -> Mapping[str, Totals]:
        """Return what each has added up to since this ledger was opened, by its name.

        From zero, as counters of a process are: what a crash cost of the stored totals would
        otherwise look like a counter that began anew.
        """
        self._sums.advance(self._clock())
        return {
            getattr(scope, "project" if kind == "reclaimed" else kind): self._now(series).minus(
                self._before.get(scope, Totals())
            )
            for scope, series in self._by_scope.items()
            if scope.kind == kind
        }

    def known(self, kind: Literal["project", "user", "node"]) -> list[str]:
        """Return the names of those that ever held anything, in the order of the alphabet."""
        found = (scope for scope in self._by_scope if scope.kind == kind)
        return sorted(getattr(scope, kind) for scope in found)

    def workloads(self) -> list[str]:
        """Return the workloads that held anything and were not forgotten."""
        return list(self._by_workload)

    def reported(self) -> Mapping[str, float]:
        """Return until when each node has been measured."""
        return self._sums.measured_until

    def last_active(self, uuid: str) -> float | None:
        """Return when a device was last not idle; None when it was not since the start."""
        return self._active.get(uuid)

    def device(self, uuid: str) -> tuple[float | None, int | None] | None:
        """Return a device's utilization (0..1) and memory in MiB now; None: not measured."""
        at, utilization, memory = self._devices.get(uuid, (0.0, None, None))
        return (utilization, memory) if at > self._clock() - RECENT_S else None

    def trouble(self) -> str:
        """Say why the database could not be asked, or written to, last; "" where it could."""
        return "Taken" if self._writer.is_lost else self._reader.trouble

    async def usage(
        self, who: UsageFilter, since: float, until: float, step_s: int | None = None
    ) -> Usage:
        """Return allocated and utilized GPUs over a range.

        The range is widened to the finest grid that reaches back so far, the step made longer where
        there would be more than 1500 points; the answer says what it is about. Without `step_s`
        there are about 300 points.
        """
        now = self._clock()
        self._sums.advance(now)
        # What is older is in the database; since then memory has each second.
        memory_since = max(int(self._opened) + 1, int(now) - MEMORY_S + WRITE_S)
        found = query.choose_range(since, until, step_s, now=now, memory_since=memory_since)
        instants = (found.since, *found.ends)
        recent = [t for t in instants if t >= memory_since]
        in_memory = {s.id: self._at(s, recent) for s in self._remembered(who.scope)}
        spans = self._spans()
        totals, stored_spans = await self._reader.asked(
            self._read, who.scope, found, len(instants) - len(recent), in_memory
        )
        return query.usage(who.scope, found, totals, list((stored_spans | spans).values()))

    async def events(self, workload: str, *, since: float = 0.0, limit: int = 1000) -> list[Event]:
        """Return the newest events of a workload and of earlier ones of its name, oldest first."""
        waiting = [e for e in self._writer.batch.events if e.workload == workload and e.at >= since]
        stored = await self._reader.asked(self._store.events_of, workload, since, limit)
        return (stored + waiting)[-limit:]

    async def past(self, since: float) -> list[Past]:
        """Return the workloads that held anything after a time, oldest first."""
        self._sums.advance(self._clock())
        happened: dict[str, list[float]] = {}
        for event in self._writer.batch.events:
            happened.setdefault(event.workload, []).append(event.at)
        asked: dict[str, list[Asked]] = {}
        for (workload, _), one in self._writer.batch.requests.items():
            asked.setdefault(workload, []).append(one)
        changed = self._sums.changed
        lives = [s for s in {*self._by_scope.values(), *changed} if s.scope.kind == "workload"]
        recent = [(s, self._now(s)) for s in lives if s in changed or s.opened >= since]
        found = await self._reader.asked(self._store.past_workloads, since)
        return merged(found, recent, happened, asked)

    def _remembered(self, scope: Scope) -> list[Series]:
        return [
            series
            for series in {*self._by_scope.values(), *self._sums.changed}
            if query.answers(series.scope, scope)
        ]

    def _spans(self) -> dict[int, Span]:
        return {
            self._first_span + n: Span(span.started, span.ended)
            for n, span in enumerate(self._sums.spans)
        }

    def _read(
        self, scope: Scope, found: Range, stored: int, in_memory: dict[int, list[Totals]]
    ) -> tuple[list[Totals], dict[int, Span]]:
        """Add up a scope's series at the range's start and ends, the first `stored` from rows."""
        instants = (found.since, *found.ends)
        sums = [Totals()] * len(instants)
        for series_id in {*self._store.series_ids(scope), *in_memory}:
            remembered = in_memory.get(series_id)
            from_rows = instants if remembered is None else instants[:stored]
            totals = self._store.totals_at_each(series_id, from_rows)
            totals += remembered or []
            sums = [sum_.plus(one) for sum_, one in zip(sums, totals, strict=True)]
        return sums, self._store.spans_between(found.since, found.until)

    # -- what is written -------------------------------------------------------------------------

    async def run(self) -> None:
        """Write every ten seconds and drop what is too old, until cancelled; call once."""
        try:
            while True:
                await asyncio.sleep(WRITE_S - self._clock() % WRITE_S + LATE_S)
                await self.flush()
                if self._clock() - self._retained_at >= RETENTION_S:
                    self._retained_at = self._clock()
                    await asyncio.to_thread(self._writer.drop_old, self._retained_at)
        finally:
            self._write_rest()

    async def flush(self) -> None:
        """Write what is complete; what cannot be written is kept for the next time."""
        self._collect(int(self._clock() - LATE_S) // WRITE_S * WRITE_S)
        if not self._reader.is_open:
            if (stored := await self._writer.take_later()) is None:
                return
            self._begin_anew(stored)
        await self._writer.write()

    def close(self) -> None:
        """Write what there is and close the database; a repeat does nothing."""
        self._write_rest()
        self._store.close()

    def _write_rest(self) -> None:
        # The running stretch of ten seconds is written as if complete: it will not be continued.
        end = math.ceil(self._clock() / WRITE_S) * WRITE_S
        self._collect(max(end, self._sums.closed_until + WRITE_S))
        self._writer.write_rest()

    def _collect(self, until: int) -> None:
        """Put into the batch the rows on the grid up to `until`."""
        now = self._clock()
        self._sums.advance(now)
        for at in range(self._sums.closed_until + WRITE_S, until + 1, WRITE_S):
            changed = self._sums.changed
            if not changed:
                break
            if not self._sums.is_watched(at, and_for=LEVELS_S[-1] + WRITE_S):
                continue  # a machine that slept for a week: nothing can have changed
            level = max(level for level in LEVELS_S if at % level == 0)
            for series in sorted(changed, key=lambda one: one.id):
                self._collect_row(series, at, level)
        self._sums.closed_until = max(self._sums.closed_until, until)
        if self._writer.batch or until - self._span_written_until >= IDLE_WRITE_S or until >= now:
            self._span_written_until = until
            for id_, span in self._spans().items():
                # Not beyond the rows: after a crash what they lack must be a gap, not a zero.
                if span.started < until:
                    span.ended = min(span.ended, until)
                    self._writer.batch.spans[id_] = span
        self._latest = {k: v for k, v in self._latest.items() if v[0] > now - RECENT_S}
        for series in self._by_workload.values():
            series.rest(now)  # 29 KiB each, of thousands that have finished

    def _collect_row(self, series: Series, at: int, level: int) -> None:
        (totals,) = self._at(series, [at])
        due = [grid for grid in LEVELS_S if grid <= level and series.written[grid] != totals]
        if series.closed:
            due = list(LEVELS_S)
        if due:
            self._writer.batch.rows.append(Row(series.id, at, due[-1], totals))
            for grid in LEVELS_S:
                if grid <= due[-1]:
                    series.written[grid] = totals
        now = self._now(series)
        if all(series.written[grid] == now for grid in LEVELS_S):
            self._sums.is_written(series)

    def _now(self, series: Series) -> Totals:
        return series.now(self._sums.at or 0.0)

    def _at(self, series: Series, instants: Sequence[int]) -> list[Totals]:
        return series.at(instants, self._sums.at or 0.0)

    def _series(self, scope: Scope) -> Series:
        series = self._by_scope.get(scope)
        if series is None:
            self._last_id += 1
            series = Series(self._last_id, scope, self._clock())
            self._by_scope[scope] = series
            self._writer.batch.series.append(series)
            if scope.kind == "workload":
                self._by_workload[scope.workload] = series
        return series
