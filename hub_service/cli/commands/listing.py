"""`runai list`: workloads, projects and nodes as tables.

`list` focuses on requests and states, `top` on allocation and utilization; both show all four.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, get_args

import click

from runai.hub_service.cli.framework.reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, tables
from runai.hub_service.client import Client
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
@click.option("-p", "--project", type=PROJECT_NAME, help="Only this project's workloads.")
@click.option("-u", "--user", help="Only this user's workloads.")
@click.option(
    "--state", type=click.Choice(get_args(WorkloadStateName)), help="Only workloads in this state."
)
@click.option("--mine", is_flag=True, help="Only what you may pause, resume and delete.")
@click.option("--elements", is_flag=True, help="The jobs of arrays one by one, once they begin.")
@click.option("--all", "everything", is_flag=True, help=f"All of them, not the first {FIRST_PAGE}.")
@output_option("table", "wide", "json", "name")
def list_(
    what: str,
    project: str | None,
    user: str | None,
    state: str | None,
    mine: bool,
    elements: bool,
    everything: bool,
    output: str,
) -> None:
    """List jobs and sessions, projects or nodes.

    `runai list` alone lists the workloads that you may see; `runai list sessions` the sessions.
    GPUS is what is allocated of what was asked; UTIL is how much of the allocated is busy.
    An array is one line.
    """
    with Client.discover() as client:
        kind = _KINDS[what]
        if kind == "projects":
            show_projects(client, output)
        elif kind == "nodes":
            _show_nodes(client.nodes(), output)
        else:
            only = "session" if kind == "sessions" else None
            which = WorkloadFilter(project, user, state, only, mine=mine or None)
            if everything or output in {"json", "name"}:
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
    if output == "json":
        render.show_json(workloads)
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
    if output == "json":
        render.show_json(client.projects())
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
    if output == "json":
        render.show_json(nodes)
        return
    if output == "name":
        _show_names(node.name for node in nodes)
        return
    tables.node_table().show(tables.devices_of(nodes), wide=output == "wide")
    for line in filter(None, map(tables.beside_gpus, nodes)):
        click.echo(for_terminal(line))
    note_simulated(any_simulated(nodes))


def _show_names(names: Iterable[str]) -> None:
    """Print one name in a line, for a shell's loop; an array once, as its whole."""
    for name in names:
        click.echo(for_terminal(name))


def any_simulated(nodes: Sequence[NodeView]) -> bool:
    """Return True if any device is simulated."""
    return any(device.simulated for node in nodes for device in node.devices)


def note_simulated(simulated: bool) -> None:
    """Print the meaning of the asterisk if one was shown."""
    if simulated:
        click.echo(render.SIMULATED_NOTE)
