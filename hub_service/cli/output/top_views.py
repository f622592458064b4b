"""Row selection, order and headline of `runai top`.

Pure functions, shared by the printed table and the live screen.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from runai.hub_service.cli.output import tables
from runai.hub_service.client import texts
from runai.hub_service.client.array_lines import folded
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import FINISHED, Overview, WorkloadView
from runai.hub_service.wire.usage_schemas import UsageSeries

ViewName = Literal["nodes", "jobs", "projects"]


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The selected view, order and filters; keys of the live screen change it."""

    view: ViewName = "nodes"
    sort: str = ""
    """A column's heading as typed; "": nodes and projects by name, jobs the busiest first."""
    reverse: bool = False
    idle: bool = False
    """Only workloads with idle GPUs, the longest idle first."""
    user: str | None = None
    project: str | None = None
    node: str | None = None

    def for_view(self, view: ViewName) -> "TopOptions":
        """Return the query for another view: default order, same filters."""
        return replace(self, view=view, sort="", reverse=False, idle=False)

    def with_idle(self, *, only: bool) -> "TopOptions":
        """Return the query with or without the filter for idle GPUs."""
        return replace(self, idle=only)

    def reversed(self) -> "TopOptions":
        """Return the query in reversed order."""
        return replace(self, reverse=not self.reverse)

    def sorted_by(self, name: str) -> "TopOptions":
        """Return the query sorted by a column."""
        return replace(self, sort=name, reverse=False)

    def sorted_after(self, now: datetime, *, wide: bool) -> "TopOptions":
        """Return the query sorted by the next column; after the last, in default order."""
        table = _table(self.view, now, simulated=False)
        names = ["", *(c.heading.lower() for c in table.visible_columns(wide=wide))]
        next_name = names[(names.index(self.sort) + 1) % len(names)] if self.sort in names else ""
        return replace(self, sort=next_name, reverse=False)


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """A table and its rows from top to bottom."""

    table: tables.Table[Any]
    rows: list[Any]
    sorted_by: str
    """Heading of the sort column; "" for the default order."""

    @property
    def keys(self) -> list[str]:
        """Return a key for each row that is stable across reordering."""
        return [
            f"{t.node} {t.device.uuid}" if isinstance(t, tables.DeviceOf) else _name(t)
            for t in self.rows
        ]


def _name(row: Any) -> str:
    return row.id if isinstance(row, WorkloadView) else row.name


def _table(view: ViewName, now: datetime, *, simulated: bool) -> tables.Table[Any]:
    if view == "nodes":
        return tables.node_table()
    if view == "projects":
        return tables.project_table(simulated=simulated)
    return tables.workload_table(now)


def column_names(view: ViewName, now: datetime) -> list[str]:
    """Return the names by which `--sort` takes the columns of a view."""
    columns = _table(view, now, simulated=False).columns
    return [column.heading.lower().replace(" ", "-") for column in columns]


def select_rows(overview: Overview, options: TopOptions, now: datetime) -> SelectedRows:
    """Select and sort the rows of an overview.

    Raises:
        InvalidRequest: the sort column does not exist.
    """
    simulated = tables.any_simulated(overview.nodes)
    table = _table(options.view, now, simulated=simulated)
    rows = _rows_of(overview, options)
    if not options.sort:
        return SelectedRows(table, rows[::-1] if options.reverse else rows, "")
    column = table.column(options.sort)
    if column is None:
        names = ", ".join(column_names(options.view, now))
        raise InvalidRequest(
            f"There is no column '{options.sort}' of {options.view}.", hint=f"Columns: {names}."
        )
    return SelectedRows(table, column.order(rows, reverse=options.reverse), column.heading)


def nodes_of(overview: Overview, options: TopOptions) -> list[NodeView]:
    """Return the nodes that are shown."""
    return [node for node in overview.nodes if options.node in {None, node.name}]


def _rows_of(overview: Overview, options: TopOptions) -> list[Any]:
    """Return the rows that pass the filters, in the default order."""
    if options.view == "nodes":
        return tables.devices_of(nodes_of(overview, options))
    if options.view == "projects":
        return [p for p in overview.projects if options.project in {None, p.name}]
    workloads = [
        w
        for w in folded(overview.workloads)
        if w.state not in FINISHED
        and options.user in {None, w.user}
        and options.project in {None, w.project}
        and (options.node is None or any(worker.node == options.node for worker in w.workers))
    ]
    if options.idle:
        idle = [(w.idle.since, w.id, w) for w in workloads if w.idle is not None]
        return [w for _, _, w in sorted(idle, key=lambda one: one[:2])]
    return sorted(workloads, key=_default_key)


def _default_key(w: WorkloadView) -> tuple[Any, ...]:
    """Return the default sort key of jobs.

    Most busy GPUs first, then workloads with an allocation, then the queue in its order.
    """
    place = w.reason.position if w.reason is not None and w.reason.position else 0
    return (not w.allocated, -(w.measured.utilized or 0), place, w.submitted, w.id)


def headline(overview: Overview) -> str:
    """Format current allocation, utilization and the number of waiting workloads."""
    devices = [d for node in overview.nodes for d in node.devices]
    capacity = float(len(devices))
    measured = [d.utilized for d in devices if d.utilized is not None]
    simulated = any(d.simulated for d in devices)
    allocated = sum(d.allocated for d in devices)
    share = texts.share(sum(measured), allocated, simulated=simulated)
    utilized = f", {share} of them utilized" if allocated else ""
    utilized = utilized if measured else ", utilization not measured"
    waiting = sum(p.waiting for p in overview.projects)
    return (
        f"{texts.gpus(allocated)} of {texts.gpus(capacity)} GPUs allocated"
        f" ({texts.share(allocated, capacity)}){utilized}; {waiting} waiting"
    )


def begin_of_history(usage: UsageSeries) -> datetime | None:
    """Return when the history begins, if that is within the range."""
    step = timedelta(seconds=usage.step_s)
    first = next((point.at - step for point in usage.points if point.allocated is not None), None)
    return first if first is not None and first - usage.since > step else None


def average(usage: UsageSeries) -> str:
    """Format average utilization and allocation over a range."""
    utilized = texts.share(
        usage.utilized_beside_allocated(), usage.capacity, simulated=usage.simulated
    )
    allocated = texts.share(usage.allocated_average, usage.capacity)
    return f"{utilized} utilized, {allocated} allocated on average"
