"""`runai list` and `runai top`: workloads, projects and nodes as tables.

`list` is about requests and states, `top` about what is allocated and how much of that is utilized;
both show the two side by side. The rows are functions of what the API said and of now.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import click
from rich.text import Text

from runai.hub_service.api.schemas import (
    NodeView,
    ProjectView,
    WorkloadStateName,
    WorkloadView,
)
from runai.hub_service.cli import render
from runai.hub_service.cli.naming import PROJECT_NAME
from runai.hub_service.cli.reporting import Command, output_option
from runai.hub_service.client import Client

__all__ = ["list_", "node_rows", "project_rows", "show_projects", "top", "workload_rows"]

Rows = list[list[str | Text]]

WORKLOAD_HEADER: Final = ("NAME", "PROJECT", "USER", "STATE", "GPUS", "UTIL", "AGE", "REASON")
WORKLOAD_WIDE: Final = (
    *WORKLOAD_HEADER[:-1],
    "KIND",
    "PRIORITY",
    "WORKERS",
    "DEVICES",
    "AVG UTIL",
    "GPU MEMORY",
    "PAUSES",
    "REASON",
)
PROJECT_HEADER: Final = (
    "NAME",
    "ALLOCATED",
    "QUOTA",
    "OVER QUOTA",
    "BUILD",
    "BUILD QUOTA",
    "UTIL",
    "WAITING",
)
PROJECT_WIDE: Final = (
    *PROJECT_HEADER,
    "FAIR SHARE",
    "LIMIT",
    "WEIGHT",
    "PRIORITY",
    "PARENT",
    "MEMBERS",
    "GROUPS",
    "ADMINS",
)
NODE_HEADER: Final = ("NODE", "GPU", "DEVICE", "ALLOCATED", "UTIL", "MEMORY", "HELD BY")
NODE_WIDE: Final = (*NODE_HEADER, "HEALTH", "UUID")

_KINDS: Final = {
    "jobs": "jobs",
    "job": "jobs",
    "workloads": "jobs",
    "sessions": "sessions",
    "session": "sessions",
    "projects": "projects",
    "project": "projects",
    "nodes": "nodes",
    "node": "nodes",
}
_REASON_STATES: Final = frozenset({"queued", "paused", "stopping", "retrying", "failed"})


def workload_rows(workloads: Sequence[WorkloadView], now: datetime, *, wide: bool = False) -> Rows:
    """Make a line for each workload."""
    return [_workload_row(w, now, wide=wide) for w in workloads]


def _workload_row(w: WorkloadView, now: datetime, *, wide: bool) -> list[str | Text]:
    util = render.share(w.utilized, w.allocated, simulated=w.simulated)
    row: list[str | Text] = [
        w.name,
        w.project,
        w.user,
        render.state(w.state),
        render.holding(w),
        util,
        render.age(w.submitted, now),
    ]
    if wide:
        row += [
            w.kind,
            str(w.priority),
            str(len(w.workers) or 1),
            render.devices(w),
            render.share(w.utilized_average, w.gpus, simulated=w.simulated),
            render.memory(w.memory_used_mib),
            str(w.pauses),
        ]
    if w.idle is not None:
        return [*row, Text(w.idle.text, style="yellow")]
    return [*row, render.reason(w.reason) if w.state in _REASON_STATES or w.released else ""]


def project_rows(
    projects: Sequence[ProjectView], *, wide: bool = False, simulated: bool = False
) -> Rows:
    """Make a line for each project; `simulated` marks what was measured on simulated devices."""
    return [_project_row(p, wide=wide, simulated=simulated) for p in projects]


def _project_row(p: ProjectView, *, wide: bool, simulated: bool) -> list[str | Text]:
    row: list[str | Text] = [
        p.name,
        render.gpus(p.allocated),
        render.quota(p.quota),
        render.gpus(p.over_quota),
        render.gpus(p.build_allocated),
        render.quota(p.build_quota),
        render.share(p.utilized, p.allocated, simulated=simulated),
        str(p.waiting),
    ]
    if wide:
        row += [
            render.gpus(p.fair_share),
            render.quota(p.limit),
            "-" if p.weight is None else str(p.weight),
            str(p.priority),
            p.parent or "-",
            render.listed(p.members),
            render.listed(p.groups),
            render.listed(p.admins),
        ]
    return row


def node_rows(nodes: Sequence[NodeView], *, wide: bool = False) -> Rows:
    """Make a line for each device."""
    rows: Rows = []
    for node in nodes:
        for d in node.devices:
            mark = "*" if d.simulated else ""
            holders = [f"{a.workload or a.user} {render.gpus(a.gpus)}" for a in d.allocations]
            holders += [
                f"others{f' ({o.account})' if o.account else ''} {render.memory(o.memory_mib)}"
                for o in d.others
            ]
            row: list[str | Text] = [
                node.name,
                str(d.device),
                f"{d.name}{mark}" if d.healthy else Text(f"{d.name}{mark} broken", style="red"),
                render.gpus(d.allocated),
                render.share(d.utilized, 1, simulated=d.simulated),
                f"{render.memory(d.memory_used_mib)}/{render.memory(d.memory_mib)}",
                render.listed(holders),
            ]
            if wide:
                row += ["healthy" if d.healthy else Text(d.fault or "broken", style="red"), d.uuid]
            rows.append(row)
    return rows


LEAST_SHOWN_HOURS = 0.05
"""Of what was given to others; less would be shown as nothing."""


@click.command(name="list", cls=Command)
@click.argument(
    "what",
    type=click.Choice(list(_KINDS)),
    default="jobs",
    metavar="[jobs|sessions|projects|nodes]",
)
@click.option("-p", "--project", type=PROJECT_NAME, help="Only this project's workloads.")
@click.option("-u", "--user", help="Only this user's workloads.")
@click.option(
    "--state", type=click.Choice(get_args(WorkloadStateName)), help="Only workloads in this state."
)
@click.option("--mine", is_flag=True, help="Only what you may pause, resume and delete.")
@output_option("table", "wide", "json")
def list_(
    what: str,
    project: str | None,
    user: str | None,
    state: str | None,
    mine: bool,
    output: str,
) -> None:
    """List jobs and sessions, projects or nodes.

    `runai list` alone lists all workloads that you may see; `runai list sessions` the sessions.
    GPUS is what is allocated of what was asked; UTIL is how much of the allocated is busy.
    """
    with Client.discover() as client:
        kind = _KINDS[what]
        if kind == "projects":
            show_projects(client, output)
        elif kind == "nodes":
            _show_nodes(client.nodes(), output)
        else:
            found = client.workloads(project=project, user=user, state=state)
            if kind == "sessions":
                found = [w for w in found if w.kind == "session"]
            _show_workloads([w for w in found if w.mine or not mine], output)


@click.command(cls=Command)
@click.argument(
    "what",
    type=click.Choice(["nodes", "node", "jobs", "job"]),
    default="nodes",
    metavar="[nodes|jobs]",
)
@click.option("--idle", is_flag=True, help="Only workloads whose GPUs are idle, longest first.")
@output_option("table", "json")
def top(what: str, idle: bool, output: str) -> None:
    """Show what is allocated and what is utilized.

    Of nodes, or with `runai top jobs` of the workloads that hold GPUs, busiest first.
    """
    with Client.discover() as client:
        if idle:
            _show_idle(client.workloads(), output)
            return
        if _KINDS[what] == "nodes":
            _show_nodes(client.nodes(), output, client if output == "table" else None)
            return
        holding = [w for w in client.workloads() if w.allocated]
        holding.sort(key=lambda w: (-(w.utilized or 0), w.id))
        _show_workloads(holding, "wide" if output == "table" else output)


def _show_idle(workloads: Sequence[WorkloadView], output: str) -> None:
    found = sorted(
        ((w.idle.since, w) for w in workloads if w.idle is not None), key=lambda one: one[0]
    )
    if not found and output == "table":
        click.echo("No GPU that you may see is idle.", err=True)
        return
    _show_workloads([w for _, w in found], "wide" if output == "table" else output)


def _show_workloads(workloads: Sequence[WorkloadView], output: str) -> None:
    if output == "json":
        render.show_json(workloads)
        return
    if not workloads:
        click.echo("There are no workloads. `runai submit` makes one.", err=True)
        return
    wide = output == "wide"
    header = WORKLOAD_WIDE if wide else WORKLOAD_HEADER
    rows = workload_rows(workloads, datetime.now(UTC), wide=wide)
    render.show_table(header, rows, fold="REASON")
    _note_simulated(any(w.simulated and w.allocated for w in workloads))


def show_projects(client: Client, output: str) -> None:
    """Print all projects, and below them what an admin should know of their quotas."""
    if output == "json":
        render.show_json(client.projects())
        return
    seen = client.overview()
    simulated = _any_simulated(seen.nodes)
    wide = output == "wide"
    header = PROJECT_WIDE if wide else PROJECT_HEADER
    rows = project_rows(seen.projects, wide=wide, simulated=simulated)
    render.show_table(header, rows, fold="MEMBERS")
    _note_simulated(simulated and any(p.utilized is not None for p in seen.projects))
    for note in seen.notes:
        click.echo(note)


def _show_nodes(nodes: Sequence[NodeView], output: str, averages_of: Client | None = None) -> None:
    if output == "json":
        render.show_json(nodes)
        return
    wide = output == "wide"
    header = NODE_WIDE if wide else NODE_HEADER
    render.show_table(header, node_rows(nodes, wide=wide), fold="HELD BY")
    if averages_of is not None:
        _show_averages(averages_of)
    _note_simulated(_any_simulated(nodes))


def _show_averages(client: Client) -> None:
    """Print the headline figure: how busy the GPUs were, beside how many were allocated."""
    now = datetime.now(UTC)
    for name, hours in (("last hour", 1), ("last 24 hours", 24), ("last 7 days", 168)):
        usage = client.usage(since=now - timedelta(hours=hours))
        busy = render.share(usage.utilized_average, usage.capacity, simulated=usage.simulated)
        allocated = render.share(usage.allocated_average, usage.capacity)
        click.echo(f"{f'{name}:':15} {busy} utilized, {allocated} allocated on average")
    reclaimed = client.overview().idle_gpu_hours_reclaimed
    if reclaimed >= LEAST_SHOWN_HOURS:
        click.echo(f"{reclaimed:.1f} GPU-hours would have been idle, had others not had them")


def _any_simulated(nodes: Sequence[NodeView]) -> bool:
    return any(device.simulated for node in nodes for device in node.devices)


def _note_simulated(simulated: bool) -> None:
    if simulated:
        click.echo(render.SIMULATED_NOTE)
