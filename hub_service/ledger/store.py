"""SQL of the ledger, for SQLite and PostgreSQL: queries, and one write each ten seconds.

Calls block; they may come from any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from runai.hub_service.ledger import schema
from runai.hub_service.ledger.opening import convert_errors, engine_of, prepare
from runai.hub_service.ledger.past_workloads import PastRequest, PastWorkloadRecord, past_of
from runai.hub_service.ledger.query import Range
from runai.hub_service.ledger.totals import LEVELS_S, ZERO, Scope, Series, Totals, window_of

DAY_S = 86400
RETENTION_S = {10: 2 * DAY_S, 60: 90 * DAY_S}
"""Retention of windows by level; windows of an hour stay for ever."""

EVENTS_S = 400 * DAY_S
"""Retention of workloads' events and requests."""


class Event(NamedTuple):
    """One event of a workload."""

    at: float
    workload: str
    kind: str
    text: str
    project: str = ""
    user: str = ""


class Forgotten(NamedTuple):
    """A deleted workload."""

    workload: str
    at: float
    series: Series | None
    """None: the database was not open yet, and the workload had no series in memory."""


@dataclass(slots=True)
class WriteBatch:
    """The content of one transaction."""

    amounts: Mapping[Series, Mapping[int, Totals]] = field(default_factory=dict)
    """Amounts added to each series, by window."""
    forgotten: list[Forgotten] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    requests: dict[tuple[str, int], PastRequest] = field(default_factory=dict)
    """Requests by the workload's name and its time of submission."""


ADD_SAMPLE = sa.text(
    "INSERT INTO samples (series_id, level, at, held_s, measured_s, allocated_s, used_s, idle_s)"
    " VALUES (:id, :level, :at, :held_s, :measured_s, :allocated_s, :used_s, :idle_s)"
    " ON CONFLICT (series_id, level, at) DO UPDATE SET held_s = samples.held_s + excluded.held_s,"
    " measured_s = samples.measured_s + excluded.measured_s,"
    " allocated_s = samples.allocated_s + excluded.allocated_s,"
    " used_s = samples.used_s + excluded.used_s, idle_s = samples.idle_s + excluded.idle_s"
)
ADD_TOTALS = sa.text(
    "UPDATE series SET held_s = held_s + :held_s, measured_s = measured_s + :measured_s,"
    " allocated_s = allocated_s + :allocated_s, used_s = used_s + :used_s,"
    " idle_s = idle_s + :idle_s WHERE id = :id"
)
OPEN_SERIES = sa.text(
    'INSERT INTO series (kind, project, "user", workload, device, node, opened)'
    " VALUES (:kind, :project, :user, :workload, :device, :node, :opened)"
    ' ON CONFLICT (kind, project, "user", workload, device, node) WHERE closed IS NULL'
    " DO UPDATE SET opened = series.opened RETURNING id"
)
CLOSE_WORKLOAD = sa.text(
    "UPDATE series SET closed = :at"
    " WHERE kind = 'workload' AND workload = :workload AND closed IS NULL"
)
SAVE_REQUEST = sa.text(
    "INSERT INTO requests (workload, submitted, asked, starts)"
    " VALUES (:workload, :submitted, :text, :starts) ON CONFLICT (workload, submitted)"
    " DO UPDATE SET asked = excluded.asked, starts = excluded.starts"
)


class LedgerStore:
    """One ledger database, with tables of the current schema after `open`."""

    def __init__(self, database: str | Path, *, later: bool = False) -> None:
        """Open the database, or with `later` leave that to `open`.

        Raises:
            Unavailable: the file is broken, the server does not answer, or a newer version wrote
                the database.
        """
        self._engine = engine_of(database)
        if not later:
            self.open()

    def open(self) -> list[Series]:
        """Create or migrate the tables if needed, and return the open series.

        Raises:
            Unavailable: as for the constructor; `history_away` if a later try may succeed.
        """
        series = schema.series
        query = sa.select(series).where(series.c.closed.is_(None)).order_by(series.c.id)
        with convert_errors(self._engine):
            prepare(self._engine)
            with self._engine.begin() as connection:
                return [
                    Series(
                        Scope(*(row[name] for name in Scope._fields)),
                        row["opened"],
                        row["id"],
                        Totals(*(row[name] for name in Totals._fields)),
                    )
                    for row in connection.execute(query).mappings()
                ]

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def write(self, batch: WriteBatch) -> dict[Series, int]:
        """Write a batch in one transaction, and return the ids of new series.

        Not idempotent: amounts written twice count twice.
        """
        ids: dict[Series, int] = {}
        with self._engine.begin() as connection:
            for forgotten in batch.forgotten:
                if forgotten.series is not None:
                    _id_or_insert(connection, forgotten.series, ids)
                closed = {"workload": forgotten.workload, "at": forgotten.at}
                connection.execute(CLOSE_WORKLOAD, closed)
            rows: dict[tuple[int, int, int], Totals] = {}
            totals: dict[int, Totals] = {}
            for series, amounts in batch.amounts.items():
                id_ = _id_or_insert(connection, series, ids)
                for window, amount in amounts.items():
                    totals[id_] = totals.get(id_, ZERO).plus(amount)
                    for level in LEVELS_S:
                        key = id_, level, window_of(window, level)
                        rows[key] = rows.get(key, ZERO).plus(amount)
            samples = [
                {"id": id_, "level": level, "at": at} | added._asdict()
                for (id_, level, at), added in rows.items()
            ]
            requests = [
                {"workload": name} | request._asdict()
                for (name, _), request in batch.requests.items()
            ]
            for statement, values in (
                (ADD_TOTALS, [{"id": id_} | added._asdict() for id_, added in totals.items()]),
                (ADD_SAMPLE, samples),
                (SAVE_REQUEST, requests),
                (sa.insert(schema.events), [event._asdict() for event in batch.events]),
            ):
                if values:
                    connection.execute(statement, values)
        return ids

    def sums(self, scope: Scope, query_range: Range) -> tuple[dict[int, Totals], dict[int, Totals]]:
        """Return the totals of a scope and of `watched` for each step of a range.

        Keys are step numbers. Closed series of the same name are included.
        """
        samples = schema.samples.c
        step = (samples.at - 1) // query_range.step_s - query_range.since // query_range.step_s
        sums: dict[int, Totals] = {}
        watched: dict[int, Totals] = {}
        with self._engine.connect() as connection:
            ids = _ids_of(connection, scope)
            watches = _ids_of(connection, Scope("watched"))
            # One statement, so that it sees a concurrent write completely or not at all.
            query = sa.union_all(
                *(
                    sa.select(
                        samples.series_id.in_(watches),
                        step.label("step"),
                        *(sa.func.sum(samples[name]) for name in Totals._fields),
                    )
                    .where(
                        samples.series_id.in_([*ids, *watches]),
                        samples.level == level,
                        samples.at > after,
                        samples.at <= until,
                    )
                    .group_by(samples.series_id, sa.literal_column("step"))
                    for level, after, until in query_range.pieces()
                )
            )
            for is_watched, number, *added in connection.execute(query):
                sums_by_step = watched if is_watched else sums
                sums_by_step[number] = sums_by_step.get(number, ZERO).plus(Totals(*added))
        return sums, watched

    def events_of(self, workload: str, since: float, limit: int) -> list[Event]:
        """Return the newest events of a workload, oldest first."""
        query = (
            sa.select(schema.events)
            .where(schema.events.c.workload == workload, schema.events.c.at >= since)
            .order_by(schema.events.c.at.desc(), schema.events.c.id.desc())
            .limit(limit)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [Event(*(row[name] for name in Event._fields)) for row in reversed(rows)]

    def past_workloads(self, since: float, level: int) -> list[PastWorkloadRecord]:
        """Return the workloads with an allocation after a time, oldest first.

        `level` is the length of the windows to search.
        """
        series, samples, events = schema.series.c, schema.samples.c, schema.events.c
        series_query = (
            sa.select(schema.series)
            .where(
                series.kind == "workload",
                sa.exists().where(
                    samples.series_id == series.id, samples.level == level, samples.at > since
                ),
            )
            .order_by(series.opened, series.id)
        )
        names = sa.select(series_query.subquery().c.workload)
        history = (
            sa.select(events.workload, events.at, events.kind)
            .where(events.workload.in_(names))
            .order_by(events.at, events.id)
        )
        request_query = sa.select(schema.requests).where(schema.requests.c.workload.in_(names))
        with self._engine.connect() as connection:
            requests: dict[str, list[PastRequest]] = {}
            for workload, *fields in connection.execute(request_query):
                requests.setdefault(workload, []).append(PastRequest(*fields))
            lives: dict[str, list[tuple[float, str]]] = {}
            for workload, at, kind in connection.execute(history):
                lives.setdefault(workload, []).append((at, kind))
            past_records = [
                past_of(row, lives.get(row["workload"], []), requests.get(row["workload"], []))
                for row in connection.execute(series_query).mappings()
            ]
        return sorted(past_records, key=lambda record: (record.submitted, record.workload))

    def drop_old(self, now: float) -> None:
        """Delete samples, events and requests past their retention; coarser samples remain."""
        samples, events, requests = schema.samples, schema.events, schema.requests
        with self._engine.begin() as connection:
            for level, age in RETENTION_S.items():
                old = (samples.c.level == level, samples.c.at < now - age)
                connection.execute(sa.delete(samples).where(*old))
            connection.execute(sa.delete(events).where(events.c.at < now - EVENTS_S))
            connection.execute(sa.delete(requests).where(requests.c.submitted < now - EVENTS_S))


def _ids_of(connection: sa.Connection, scope: Scope) -> Sequence[int]:
    """Return the ids of a scope's series.

    A workload is selected by its name alone, which is unique across projects.
    """
    series = schema.series.c
    query = sa.select(series.id).where(series.kind == scope.kind)
    if scope.kind != "workload":
        query = query.where(series.closed.is_(None))  # only workloads' series are ever closed
    for name in Scope._fields[1:]:
        if (value := getattr(scope, name)) or scope.kind != "workload":
            query = query.where(series[name] == value)
    return connection.scalars(query).all()


def _id_or_insert(connection: sa.Connection, series: Series, ids: dict[Series, int]) -> int:
    """Return a series' id in the database; insert the series if it has none."""
    if series.id is not None:
        return series.id
    if series not in ids:
        opened = series.scope._asdict() | {"opened": series.opened}
        ids[series] = connection.execute(OPEN_SERIES, opened).scalar_one()
    return ids[series]
