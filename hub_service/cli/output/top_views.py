"""What `runai top` shows of an overview: which things, in which order, and the line above them.

Pure: the same for one printed table and for the live screen.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from runai.hub_service.cli.output import render, tables
from runai.hub_service.cli.output.waiting import FINISHED
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import Overview, WorkloadView
from runai.hub_service.wire.usage_schemas import UsageSeries

ViewName = Literal["nodes", "jobs", "projects"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to see; the live screen changes it key by key."""

    view: ViewName = "nodes"
    sort: str = ""
    """A column's heading as one types it; "": nodes by name, others the busiest first."""
    reverse: bool = False
    idle: bool = False
    """Only workloads whose GPUs are idle, longest first."""
    user: str | None = None
    project: str | None = None
    node: str | None = None

    def of(self, view: ViewName) -> "Asked":
        """Ask for another view; its own order, the same filters."""
        return replace(self, view=view, sort="", reverse=False, idle=False)

    def with_idle(self, *, only: bool) -> "Asked":
        """Ask for those only whose GPUs are idle."""
        return replace(self, idle=only)

    def reversed(self) -> "Asked":
        """Ask for the order the other way round."""
        return replace(self, reverse=not self.reverse)

    def sorted_by(self, name: str) -> "Asked":
        """Ask for the order by a column."""
        return replace(self, sort=name, reverse=False)

    def sorted_after(self, now: datetime, *, wide: bool) -> "Asked":
        """Ask for the order by the next column, after the last one for the view's own order."""
        table = _table(self.view, now, simulated=False)
        names = ["", *(c.heading.lower() for c in table.shown(wide=wide))]
        after = names[(names.index(self.sort) + 1) % len(names)] if self.sort in names else ""
        return replace(self, sort=after, reverse=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """A table, and the things in it from top to bottom."""

    table: tables.Table[Any]
    things: list[Any]
    sorted_by: str
    """The heading of the column that orders them; "" for the view's own order."""

    @property
    def keys(self) -> list[str]:
        """Give each thing a name that stays when it moves."""
        return [
            f"{t.node} {t.device.uuid}" if isinstance(t, tables.DeviceOf) else _name(t)
            for t in self.things
        ]


def _name(thing: Any) -> str:
    return thing.id if isinstance(thing, WorkloadView) else thing.name


def _table(view: ViewName, now: datetime, *, simulated: bool) -> tables.Table[Any]:
    if view == "nodes":
        return tables.node_table()
    if view == "projects":
        return tables.project_table(simulated=simulated)
    return tables.workload_table(now)


def see(overview: Overview, asked: Asked, now: datetime) -> Seen:
    """Choose and order what was asked for.

    Raises:
        InvalidRequest: there is no such column.
    """
    simulated = any(d.simulated for node in overview.nodes for d in node.devices)
    table = _table(asked.view, now, simulated=simulated)
    things = _things(overview, asked)
    if not asked.sort:
        return Seen(table, things[::-1] if asked.reverse else things, "")
    column = table.column(asked.sort)
    if column is None:
        names = ", ".join(c.heading.lower().replace(" ", "-") for c in table.columns)
        raise InvalidRequest(
            f"There is no column '{asked.sort}' of {asked.view}.", hint=f"Columns: {names}."
        )
    return Seen(table, column.order(things, reverse=asked.reverse), column.heading)


def _things(overview: Overview, asked: Asked) -> list[Any]:
    if asked.view == "nodes":
        found = tables.devices_of(overview.nodes)
        return [at for at in found if asked.node in {None, at.node}]
    if asked.view == "projects":
        return [p for p in overview.projects if asked.project in {None, p.name}]
    workloads = [
        w
        for w in overview.workloads
        if w.state not in FINISHED
        and asked.user in {None, w.user}
        and asked.project in {None, w.project}
        and (asked.node is None or any(worker.node == asked.node for worker in w.workers))
    ]
    if asked.idle:
        idle = [(w.idle.since, w.id, w) for w in workloads if w.idle is not None]
        return [w for _, _, w in sorted(idle, key=lambda one: one[:2])]
    return sorted(workloads, key=_busiest)


def _busiest(w: WorkloadView) -> tuple[Any, ...]:
    """Who keeps the most GPUs busy first; then who holds some; then who waits, as in the queue."""
    place = w.reason.position if w.reason is not None and w.reason.position else 0
    return (not w.allocated, -(w.utilized or 0), place, w.submitted, w.id)


def headline(overview: Overview) -> str:
    """Say how much is allocated and utilized now, and how many wait."""
    devices = [d for node in overview.nodes for d in node.devices]
    whole = float(len(devices))
    measured = [d.utilized for d in devices if d.utilized is not None]
    simulated = any(d.simulated for d in devices)
    share = render.share(sum(measured), whole, simulated=simulated)
    busy = f"{share} utilized" if measured else "utilization not measured"
    allocated = sum(d.allocated for d in devices)
    waiting = sum(p.waiting for p in overview.projects)
    return (
        f"{render.gpus(allocated)} of {render.gpus(whole)} GPUs allocated"
        f" ({render.share(allocated, whole)}), {busy}; {waiting} waiting"
    )


def average(usage: UsageSeries) -> str:
    """Say how busy the GPUs were on average over a range, beside how many were allocated."""
    busy = render.share(
        usage.utilized_beside_allocated(), usage.capacity, simulated=usage.simulated
    )
    allocated = render.share(usage.allocated_average, usage.capacity)
    return f"{busy} utilized, {allocated} allocated on average"
