"""The ledger's database: one batch written every ten seconds, rows read for a query.

Knows SQL and both databases; knows no arithmetic. Calls block, so `Ledger` makes them in a thread;
they may come from any thread.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from runai.hub_service.ledger import owner, schema
from runai.hub_service.ledger.integration import Span
from runai.hub_service.ledger.opening import engine_of, prepare, said_why
from runai.hub_service.ledger.past import Asked, Past, past_of
from runai.hub_service.ledger.totals import Scope, Series, Totals

DAY_S = 86400
RETENTION_S = {10: 2 * DAY_S, 60: 90 * DAY_S}
"""How long rows of a grid are kept; hours stay for ever."""

EVENTS_S = 400 * DAY_S
"""How long the history of workloads is kept."""


class Row(NamedTuple):
    """A series' totals at a time on a grid."""

    series_id: int
    at: int
    level: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a workload."""

    at: float
    workload: str
    kind: str
    text: str
    project: str = ""
    user: str = ""


@dataclass(slots=True)
class Batch:
    """What one transaction writes."""

    series: list[Series] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    closed: dict[int, float] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    requests: dict[tuple[str, int], Asked] = field(default_factory=dict)
    """What was asked, by the workload's name and when it was submitted."""

    def absorb(self, later: "Batch") -> None:
        """Add what was collected after this one."""
        self.series += later.series
        self.rows += later.rows
        self.closed |= later.closed
        self.spans |= later.spans
        self.events += later.events
        self.requests |= later.requests

    def __bool__(self) -> bool:
        return any((self.series, self.rows, self.closed, self.spans, self.events, self.requests))


class Stored(NamedTuple):
    """What a ledger goes on from."""

    last_series: int = 0
    last_span: int = 0
    last_at: int = 0
    series: Sequence[Series] = ()


class Store:
    """One database, migrated to what this program knows."""

    def __init__(self, database: str | Path, *, later: bool = False) -> None:
        """Open it, making or migrating its tables if need be; `later`: not before it is taken.

        Raises:
            Unavailable: it is a file that is broken, or a server that does not answer, or a newer
                version wrote it.
        """
        self._engine = engine_of(database)
        self._epoch = 0
        """Nobody's: who only reads does not take it, and writes nothing."""
        self._is_closed = False
        if not later:
            with said_why(self._engine):
                prepare(self._engine)

    def take(self) -> Stored:
        """Make the database ours alone to write, until another takes it; return what it has.

        Raises:
            Unavailable: as when it is opened; `history_away` where it may be there in a moment.
        """
        with said_why(self._engine):
            prepare(self._engine)
            with self._engine.begin() as connection:
                if self._is_closed:  # while we waited: somebody else may need it by now
                    return Stored()
                self._epoch = owner.take(connection)
            return Stored(*self.last_ids(), list(self.open_series()))

    def close(self) -> None:
        """Close the connections; it is never taken from now on."""
        self._is_closed = True
        self._engine.dispose()

    def write(self, batch: Batch) -> None:
        """Write a batch, all of it or nothing; a repeat changes nothing but the events.

        Raises:
            Taken: the database is not ours, or no longer.
        """
        with self._writing() as connection:
            _upsert(connection, schema.series, [_series_row(one) for one in batch.series])
            _upsert(
                connection,
                schema.totals,
                [
                    {"series_id": r.series_id, "at": r.at, "level": r.level} | r.totals._asdict()
                    for r in batch.rows
                ],
            )
            _upsert(
                connection,
                schema.spans,
                [
                    {"id": id_, "started": span.started, "ended": span.ended}
                    for id_, span in batch.spans.items()
                ],
            )
            _upsert(
                connection,
                schema.requests,
                [
                    {
                        "workload": workload,
                        "submitted": asked.submitted,
                        "asked": asked.text,
                        "starts": asked.starts,
                    }
                    for (workload, _), asked in batch.requests.items()
                ],
            )
            for series_id, closed in batch.closed.items():
                connection.execute(
                    sa.update(schema.series)
                    .where(schema.series.c.id == series_id)
                    .values(closed=closed)
                )
            if batch.events:
                connection.execute(
                    sa.insert(schema.events),
                    [
                        {
                            "at": e.at,
                            "project": e.project,
                            "user": e.user,
                            "workload": e.workload,
                            "kind": e.kind,
                            "text": e.text,
                        }
                        for e in batch.events
                    ],
                )

    def open_series(self) -> Iterator[Series]:
        """Yield the series that are not closed, with the totals of their last rows."""
        query = (
            sa.select(schema.series, schema.totals)
            .select_from(schema.series)
            .outerjoin(
                schema.totals,
                (schema.totals.c.series_id == schema.series.c.id)
                & (schema.totals.c.at == _last_row_of_series()),
            )
            .where(schema.series.c.closed.is_(None))
            .order_by(schema.series.c.id)
        )
        with self._engine.connect() as connection:
            for row in connection.execute(query).mappings():
                totals = Totals() if row["at"] is None else _totals(row)
                scope = Scope(*(row[name] for name in Scope._fields))
                yield Series(row["id"], scope, row["opened"], totals, row["level"] or 0)

    def last_ids(self) -> tuple[int, int, int]:
        """Return the highest series id, span id and time of a row; 0 where there is none."""
        with self._engine.connect() as connection:
            return (
                connection.scalar(sa.select(sa.func.max(schema.series.c.id))) or 0,
                connection.scalar(sa.select(sa.func.max(schema.spans.c.id))) or 0,
                connection.scalar(sa.select(sa.func.max(schema.totals.c.at))) or 0,
            )

    def series_ids(self, scope: Scope) -> list[int]:
        """Return the ids of a scope's series, old ones of the same name included.

        A workload is found by its name alone: its id is unique among all projects.
        """
        query = sa.select(schema.series.c.id).where(schema.series.c.kind == scope.kind)
        for name in ("project", "user", "workload", "device", "node"):
            value = getattr(scope, name)
            if value or scope.kind != "workload":
                query = query.where(schema.series.c[name] == value)
        with self._engine.connect() as connection:
            return list(connection.scalars(query))

    def totals_at_each(self, series_id: int, instants: Sequence[int]) -> list[Totals]:
        """Return a series' totals at each time: those of its last row until then.

        One look at the index for each, however many rows lie between: a walk through three months
        of minutes takes PostgreSQL a second.
        """
        if not instants:
            return []
        asked, asked_list = self._listed(instants)
        rows = schema.totals.alias()
        last = (
            sa.select(sa.func.max(rows.c.at))
            .where(rows.c.series_id == series_id, rows.c.at <= asked.c.value)
            .correlate(asked)
            .scalar_subquery()
        )
        columns = schema.totals.c
        with self._engine.connect() as connection:
            # Not as one join: with many times a planner rather walks through the rows.
            rows_at: dict[int, int | None] = {
                row[0]: row[1]
                for row in connection.execute(sa.select(asked.c.value, last), asked_list)
            }
            wanted, wanted_list = self._listed(
                sorted({at for at in rows_at.values() if at is not None})
            )
            query = sa.select(columns.at, *(columns[name] for name in Totals._fields)).where(
                columns.series_id == series_id, columns.at.in_(sa.select(wanted.c.value))
            )
            found = {
                row[0]: Totals._make(row[1:]) for row in connection.execute(query, wanted_list)
            }
        return [found.get(rows_at[at], Totals()) for at in instants]

    def _listed(self, instants: Sequence[int]) -> tuple["sa.TableValuedAlias", dict[str, Any]]:
        """Return a table of times, in its column `value`, and the parameters that make it.

        One parameter, however many: SQL with a mark for each would be put together anew for each
        question, which takes longer than its answer.
        """
        if self._engine.dialect.name == "postgresql":
            many = sa.bindparam("instants", type_=postgresql.ARRAY(sa.BigInteger))
            table = sa.func.unnest(many).table_valued("value", name="listed").render_derived()
            return table, {"instants": list(instants)}
        table = sa.func.json_each(sa.bindparam("instants")).table_valued("value", name="listed")
        return table, {"instants": json.dumps(instants)}

    def spans_between(self, since: float, until: float) -> dict[int, Span]:
        """Return the spans that overlap a range, by id."""
        query = sa.select(schema.spans).where(
            schema.spans.c.ended > since, schema.spans.c.started < until
        )
        with self._engine.connect() as connection:
            return {row.id: Span(row.started, row.ended) for row in connection.execute(query)}

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
        return [
            Event(r["at"], r["workload"], r["kind"], r["text"], r["project"], r["user"])
            for r in reversed(rows)
        ]

    def past_workloads(self, since: float) -> dict[int, Past]:
        """Return the workloads that held anything after a time, by series."""
        series, totals, events = schema.series.c, schema.totals.c, schema.events.c
        held = (
            sa.select(
                series.id,
                series.workload,
                series.project,
                series.user,
                series.opened,
                totals.held_s,
                totals.allocated_s,
            )
            .join_from(
                schema.series,
                schema.totals,
                (totals.series_id == series.id) & (totals.at == _last_row_of_series()),
            )
            .where(series.kind == "workload", totals.at > since)
            .order_by(series.opened, series.id)
        )
        told = (
            sa.select(events.workload, events.at, events.kind)
            .where(events.workload.in_(sa.select(held.subquery().c.workload)))
            .order_by(events.at, events.id)
        )
        wanted = sa.select(schema.requests).where(
            schema.requests.c.workload.in_(sa.select(held.subquery().c.workload))
        )
        with self._engine.connect() as connection:
            asked: dict[str, list[Asked]] = {}
            for workload, *one in connection.execute(wanted):
                asked.setdefault(workload, []).append(Asked(*one))
            lives: dict[str, list[tuple[float, str]]] = {}
            for workload, at, kind in connection.execute(told):
                lives.setdefault(workload, []).append((at, kind))
            return {
                row["id"]: past_of(
                    row, lives.get(row["workload"], []), asked.get(row["workload"], [])
                )
                for row in connection.execute(held).mappings()
            }

    def drop_old(self, now: float) -> None:
        """Delete rows and events past their time; coarser rows keep the totals.

        Raises:
            Taken: the database is not ours, or no longer.
        """
        with self._writing() as connection:
            for level, age in RETENTION_S.items():
                connection.execute(
                    sa.delete(schema.totals).where(
                        schema.totals.c.level == level, schema.totals.c.at < now - age
                    )
                )
            connection.execute(sa.delete(schema.events).where(schema.events.c.at < now - EVENTS_S))
            long_ago = schema.requests.c.submitted < now - EVENTS_S
            connection.execute(sa.delete(schema.requests).where(long_ago))

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            owner.claim(connection, self._epoch)
            yield connection


def _upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(schema.upsert_into(table, connection.dialect.name), list(rows))


def _last_row_of_series() -> "sa.ScalarSelect[int]":
    """Return when a series' last row was: one look at the end of its rows."""
    rows = schema.totals.alias()
    return (
        sa.select(sa.func.max(rows.c.at))
        .where(rows.c.series_id == schema.series.c.id)
        .correlate(schema.series)
        .scalar_subquery()
    )


def _series_row(series: Series) -> dict[str, Any]:
    return {"id": series.id, "opened": series.opened, "closed": None} | series.scope._asdict()


def _totals(row: Any) -> Totals:  # noqa: ANN401  a row of any query that has these columns
    return Totals(*(row[name] for name in Totals._fields))
