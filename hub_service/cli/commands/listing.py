"""`runai list`: workloads, projects and nodes as tables.

`list` focuses on requests and states, `top` on allocation and utilization; both show all four.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, get_args

import click

from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, tables
from runai.hub_service.cli.output.watched_lists import watch_nodes, watch_projects, watch_workloads
from runai.hub_service.client import Client, texts
from runai.hub_service.client.array_lines import folded
from runai.hub_service.client.calls import FIRST_PAGE, WorkloadFilter
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.schemas import WorkloadPage, WorkloadStateName, WorkloadView

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
@click.option("--mine", is_flag=True, help="List only your own workloads.")
@click.option(
    "--manageable",
    is_flag=True,
    help="List only workloads that you may suspend, resume and delete: as an admin others' too.",
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
    manageable: bool,
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
    if mine and user:
        raise click.UsageError("--mine is --user with your name: leave one of them out.")
    with Client.discover() as client:
        kind = _KINDS[what]
        user = client.whoami().name if mine else user
        only_kind = "session" if kind == "sessions" else None
        workload_filter = WorkloadFilter(
            project, user, state, only_kind, manageable=manageable or None
        )
        if kind == "projects":
            (watch_projects if watched else show_projects)(client, output)
        elif kind == "nodes":
            (watch_nodes if watched else _show_nodes)(client, output)
        elif watched:
            watch_workloads(client, workload_filter, output, elements=elements)
        elif everything or output not in render.TABLES:
            workloads = client.workloads(workload_filter)
            _show_workloads(workloads, workload_filter, output, elements=elements)
        else:
            page = client.workload_page(workload_filter)
            _show_workloads(page.items, workload_filter, output, elements=elements)
            if page.next_token is not None:
                click.echo(_more(page))


def _more(page: WorkloadPage) -> str:
    counts = ", ".join(f"{many:,} {state}" for state, many in page.counts.items())
    total = sum(page.counts.values())
    return f"{total - len(page.items):,} more: {counts}. `runai list --all` lists them all."


def _show_workloads(
    workloads: Sequence[WorkloadView],
    workload_filter: WorkloadFilter,
    output: str,
    *,
    elements: bool,
) -> None:
    """Print workloads, an array as one line; if there are none, a note on standard error."""
    if output not in render.TABLES:
        render.show_rows(workloads, lambda w: w.id, output)
        return
    if not workloads:
        message = "No workload matches."
        if workload_filter == WorkloadFilter():
            message = "There are no workloads. `runai submit` makes one."
        click.echo(message, err=True)
        return
    rows = workloads if elements else folded(workloads)
    tables.workload_table(datetime.now(UTC)).show(rows, wide=output == "wide")
    note_simulated(any(w.simulated and w.allocated for w in workloads))


def show_projects(client: Client, output: str) -> None:
    """Print all projects, followed by the notes on their quotas for admins."""
    if output not in render.TABLES:
        render.show_rows(client.projects(), lambda p: p.name, output)
        return
    overview = client.overview()
    simulated = tables.any_simulated(overview.nodes)
    tables.project_table(simulated=simulated).show(overview.projects, wide=output == "wide")
    note_simulated(simulated and any(p.utilized is not None for p in overview.projects))
    for note in overview.notes:
        click.echo(note)


def _show_nodes(client: Client, output: str) -> None:
    nodes = client.nodes()
    if output not in render.TABLES:
        render.show_rows(nodes, lambda node: node.name, output)
        return
    tables.node_table().show(tables.devices_of(nodes), wide=output == "wide")
    show_beside_gpus(nodes)
    note_simulated(tables.any_simulated(nodes))


def show_beside_gpus(nodes: Iterable[NodeView]) -> None:
    """Print what of each node's CPU and memory is requested, if bounded; and lost GPUs."""
    for node in nodes:
        if node.loss:
            click.echo(for_terminal(node.loss))
        if requested := tables.beside_gpus([node]):
            click.echo(for_terminal(f"{node.name}: {requested}"))


def note_simulated(simulated: bool) -> None:
    """Print the meaning of the asterisk if one was shown."""
    if simulated:
        click.echo(texts.SIMULATED_NOTE)
