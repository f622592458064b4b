"""`runai list`: workloads, projects and nodes as tables.

`list` focuses on requests and states, `top` on allocation and utilization; both show all four.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, get_args

import click

from runai.hub_service.cli.framework.reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, tables
from runai.hub_service.cli.output.watching import Watched, watch
from runai.hub_service.client import Client
from runai.hub_service.client.array_lines import folded
from runai.hub_service.client.calls import FIRST_PAGE, WorkloadFilter
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.schemas import (
    Overview,
    ProjectView,
    WorkloadPage,
    WorkloadStateName,
    WorkloadView,
)

T = TypeVar("T")

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
_TABLES: Final = frozenset({"table", "wide"})


@click.command(name="list", cls=Command)
@click.argument(
    "what",
    type=click.Choice(list(_KINDS)),
    default="jobs",
    metavar="[jobs|sessions|projects|nodes]",
)
@click.option("-p", "--project", type=PROJECT_NAME, help="List only this project's workloads.")
@click.option("-u", "--user", metavar="NAME", help="List only this user's workloads.")
@click.option(
    "--state",
    type=click.Choice(get_args(WorkloadStateName)),
    help="List only workloads in this state.",
)
@click.option(
    "--mine", is_flag=True, help="List only workloads that you may suspend, resume and delete."
)
@click.option(
    "--elements", is_flag=True, help="List the jobs of an array one by one after their start."
)
@click.option(
    "--all", "everything", is_flag=True, help=f"List all workloads, not the first {FIRST_PAGE}."
)
@click.option(
    "-w",
    "--watch",
    "watched",
    is_flag=True,
    help="Print the list, then a line for each change, until Ctrl-C.",
)
@output_option("table", "wide", "json", "name")
def list_(
    what: str,
    project: str | None,
    user: str | None,
    state: str | None,
    mine: bool,
    elements: bool,
    everything: bool,
    watched: bool,
    output: str,
) -> None:
    """List jobs and sessions, projects or nodes.

    `runai list` lists your visible workloads, `runai list sessions` only sessions. GPUS shows
    allocated and requested GPUs, UTIL the utilization of the allocated ones. An array is one line.

    \b
    runai list --mine -o wide          your own, with devices and averages
    runai list --state queued -w       waiting workloads, with changes
    runai list projects
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        kind = _KINDS[what]
        only = "session" if kind == "sessions" else None
        which = WorkloadFilter(project, user, state, only, mine=mine or None)
        if kind == "projects":
            (_watch_projects if watched else show_projects)(client, output)
        elif kind == "nodes":
            if watched:
                _watch_nodes(client, output)
            else:
                _show_nodes(client.nodes(), output)
        elif watched:
            _watch_workloads(client, which, output, elements=elements)
        else:
            if everything or output in {*render.DATA, "name"}:
                show_workloads(client.workloads(which), output, elements=elements)
                return
            page = client.workload_page(which)
            show_workloads(page.items, output, elements=elements)
            if page.next_token is not None:
                click.echo(_more(page))


def _more(page: WorkloadPage) -> str:
    counts = ", ".join(f"{many:,} {state}" for state, many in page.counts.items())
    total = sum(page.counts.values())
    return f"{total - len(page.items):,} more: {counts}. `runai list --all` lists them all."


def show_workloads(
    workloads: Sequence[WorkloadView], output: str, *, elements: bool = False
) -> None:
    """Print workloads, an array as one line; if there are none, a note on standard error."""
    if output in render.DATA:
        render.show_data(workloads, output)
        return
    if output == "name":
        _show_names(workload.id for workload in workloads)
        return
    if not workloads:
        click.echo("There are no workloads. `runai submit` makes one.", err=True)
        return
    shown = workloads if elements else folded(workloads)
    tables.workload_table(datetime.now(UTC)).show(shown, wide=output == "wide")
    note_simulated(any(w.simulated and w.allocated for w in workloads))


def show_projects(client: Client, output: str) -> None:
    """Print all projects, followed by the notes on their quotas for admins."""
    if output in render.DATA:
        render.show_data(client.projects(), output)
        return
    if output == "name":
        _show_names(project.name for project in client.projects())
        return
    seen = client.overview()
    simulated = any_simulated(seen.nodes)
    tables.project_table(simulated=simulated).show(seen.projects, wide=output == "wide")
    note_simulated(simulated and any(p.utilized is not None for p in seen.projects))
    for note in seen.notes:
        click.echo(note)


def _show_nodes(nodes: Sequence[NodeView], output: str) -> None:
    if output in render.DATA:
        render.show_data(nodes, output)
        return
    if output == "name":
        _show_names(node.name for node in nodes)
        return
    tables.node_table().show(tables.devices_of(nodes), wide=output == "wide")
    show_beside_gpus(nodes)
    note_simulated(any_simulated(nodes))


def show_beside_gpus(nodes: Iterable[NodeView]) -> None:
    """Print what of each node's CPU and memory is requested, where they have a bound."""
    for node in nodes:
        if requested := tables.beside_gpus([node]):
            click.echo(for_terminal(f"{node.name}: {requested}"))


def _show_names(names: Iterable[str]) -> None:
    """Print one name in a line, for a shell's loop; an array once, as its whole."""
    for name in names:
        click.echo(for_terminal(name))


def _watch_workloads(client: Client, which: WorkloadFilter, output: str, *, elements: bool) -> None:
    def lines(workloads: Iterable[WorkloadView]) -> Iterable[WorkloadView]:
        return workloads if elements or output not in _TABLES else folded(workloads)

    def in_event(seen: Overview) -> Iterable[WorkloadView]:
        return lines(
            w
            for w in seen.workloads
            if which.project in {None, w.project}
            and which.user in {None, w.user}
            and which.kind in {None, w.kind}
            and (w.mine or not which.mine)
        )

    def is_deleted(workload: str) -> bool:
        try:
            client.workload(workload)
        except NotFound:
            return True
        return False

    watch(
        client,
        _watched(
            lambda: tables.workload_table(datetime.now(UTC)),
            in_event,
            lambda w: w.id,
            output,
            is_listed=lambda w: which.state in {None, w.state},
            is_deleted=is_deleted,
        ),
        lines(client.workloads(replace(which, state=None))),
    )


def _watch_projects(client: Client, output: str) -> None:
    simulated = any_simulated(client.nodes())

    def in_event(seen: Overview) -> Iterable[ProjectView]:
        return seen.projects

    def table() -> tables.Table[ProjectView]:
        return tables.project_table(simulated=simulated)

    watch(client, _watched(table, in_event, lambda p: p.name, output))


def _watch_nodes(client: Client, output: str) -> None:
    """Watch devices in a table, as `list` shows them, else whole nodes."""
    if output in _TABLES:
        devices = _watched(
            tables.node_table,
            lambda seen: tables.devices_of(seen.nodes),
            lambda at: f"{at.node} {at.device.device}",
            output,
        )
        watch(client, devices)
        return
    nodes: Watched[NodeView] = _watched(
        tables.node_table, lambda seen: seen.nodes, lambda node: node.name, output
    )

    def compared(node: NodeView) -> tuple[Any, ...]:
        table = tables.node_table()
        devices = (table.compared(at, wide=True) for at in tables.devices_of([node]))
        return node.cpus_allocated, node.memory_allocated_mib, *devices

    watch(client, replace(nodes, compared=compared))


def _watched(
    table: Callable[[], tables.Table[Any]],
    in_event: Callable[[Overview], Iterable[T]],
    name: Callable[[T], str],
    output: str,
    **lists: Any,
) -> Watched[T]:
    """Return what is watched; it prints later rows below the first ones."""
    wide = output != "table"
    layout: render.Layout | None = None

    def show(rows: Sequence[Any]) -> None:
        nonlocal layout
        if output == "name":
            _show_names(map(name, rows))
        elif output in render.DATA:
            for row in rows:
                if output == "yaml":
                    click.echo("---")  # one document for each change
                render.show_data(row, output)
        else:
            layout = table().show(rows, wide=wide, below=layout)

    def show_deleted(gone: str) -> None:
        if output in _TABLES:
            click.echo(f"{for_terminal(gone)} deleted")
        elif output in render.DATA:
            render.show_data({"deleted": gone}, output)

    def compared(row: T) -> tuple[Any, ...]:
        return table().compared(row, wide=wide)

    return Watched(in_event, name, compared, show, show_deleted, **lists)


def any_simulated(nodes: Sequence[NodeView]) -> bool:
    """Return True if any device is simulated."""
    return any(device.simulated for node in nodes for device in node.devices)


def note_simulated(simulated: bool) -> None:
    """Print the meaning of the asterisk if one was shown."""
    if simulated:
        click.echo(render.SIMULATED_NOTE)
