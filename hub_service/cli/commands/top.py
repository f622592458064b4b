"""`runai top` and `runai status`: allocation and utilization, live on a terminal, or in one line.

In a pipe, with `--once` or as JSON or YAML `runai top` prints one table.
"""

import sys
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import click

from runai.hub_service.cli.commands.listing import note_simulated, show_beside_gpus
from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, tables, top_views
from runai.hub_service.cli.output.top_views import SelectedRows, TopOptions, ViewName
from runai.hub_service.client import Client, texts
from runai.hub_service.client.prompt import fetch_status_line
from runai.hub_service.wire.schemas import Overview

_KINDS: Final[dict[str, ViewName]] = {
    **{name: name for name in get_args(ViewName)},
    "node": "nodes",
    "job": "jobs",
    "project": "projects",
}
MIN_PRINTED_HOURS: Final = 0.05
"""Smallest amount of reclaimed idle GPU-hours to print; less would be rounded to 0.0."""


def _columns() -> str:
    """Return the columns of each view as `--sort` takes them."""
    now = datetime.now(UTC)
    return "; ".join(
        f"{view} by {', '.join(top_views.column_names(view, now))}" for view in get_args(ViewName)
    )


@click.command(cls=Command)
@click.argument(
    "what", type=click.Choice(list(_KINDS)), default="nodes", metavar="[nodes|jobs|projects]"
)
@click.option(
    "--once", is_flag=True, help="Print the table once, as into a pipe, without the live screen."
)
@click.option(
    "--sort",
    metavar="COLUMN",
    default="",
    help=f"Order by a column: {_columns()}.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option(
    "--idle", is_flag=True, help="Show only workloads with idle GPUs, the longest idle first."
)
@click.option("-u", "--user", metavar="NAME", help="Show only this user's workloads.")
@click.option("-p", "--project", type=PROJECT_NAME, help="Show only this project.")
@click.option("-n", "--node", metavar="NAME", help="Show only this node, or its workloads.")
@output_option("table", "json")
def top(
    what: str,
    once: bool,
    sort: str,
    reverse: bool,
    idle: bool,
    user: str | None,
    project: str | None,
    node: str | None,
    output: str,
) -> None:
    """Show allocated GPUs, their utilization and waiting jobs.

    On a terminal it is a live screen: n, j and p select nodes, jobs and projects, s and r change
    the order, Enter opens a job's details, q ends it. Jobs with GPUs come first, the busiest
    at the top; waiting jobs follow with their reasons.

    \b
    runai top jobs --sort avg-util --reverse
    runai top --once -o json
    """  # noqa: D301 - \b is click's mark of a block
    options = TopOptions(
        view="jobs" if idle else _KINDS[what],
        sort=sort,
        reverse=reverse,
        idle=idle,
        user=user,
        project=project,
        node=node,
    )
    if output == "table" and not once and sys.stdout.isatty() and sys.stdin.isatty():
        # Only the live screen pays for its library: a third of a second.
        from runai.hub_service.cli.output.top_screen import run_screen  # noqa: PLC0415

        run_screen(options)
        return
    with Client.discover() as client:
        overview = client.overview()
        selected = top_views.select_rows(overview, options, datetime.now(UTC))
        if output in render.DATA:
            _show_data(overview, options, selected, output)
        elif not selected.rows and options.idle:
            click.echo("No GPU that you may see is idle.", err=True)
        elif not selected.rows:
            click.echo(f"There are no {options.view} to show.", err=True)
        else:
            selected.table.show(selected.rows, wide=options.view == "jobs")
            if options.view == "nodes":
                show_beside_gpus(top_views.nodes_of(overview, options))
                _show_averages(client, overview)
            note_simulated(tables.any_simulated(overview.nodes))


def _show_data(
    overview: Overview, options: TopOptions, selected: SelectedRows, output: str
) -> None:
    if options.view == "nodes":
        render.show_data(top_views.nodes_of(overview, options), output)
    else:
        render.show_data(selected.rows, output)


def _show_averages(client: Client, overview: Overview) -> None:
    """Print average utilization and allocation of the last hour, day and week."""
    now = datetime.now(UTC)
    hours = {"last hour": 1, "last 24 hours": 24, "last 7 days": 168}
    usage = {name: client.usage(since=now - timedelta(hours=h)) for name, h in hours.items()}
    for name in hours:
        click.echo(f"{f'{name}:':15} {top_views.average(usage[name])}")
    begins = top_views.begin_of_history(usage["last 7 days"])
    if begins is not None:
        click.echo(f"The history begins at {texts.clock(begins)}.")
    reclaimed = overview.idle_gpu_hours_reclaimed
    if reclaimed >= MIN_PRINTED_HOURS:
        click.echo(f"{reclaimed:.1f} GPU-hours would have been idle, had others not had them")


@click.command(cls=Command)
@output_option("text", "json")
@click.pass_context
def status(ctx: click.Context, output: str) -> None:
    """Print your GPU, its use and the project's quota in one line, for a shell's prompt.

    \b
    runai status
    PS1='$(runai status) \\$ '

    In a notebook session it is the session's line, elsewhere yours. Without an answer within half a
    second, or without a login, it prints nothing and exits with 1. -o json adds the lines of a
    tooltip and the level: none, waiting, ok, idle, over, released.
    """  # noqa: D301 - \b is click's mark of a block
    line = fetch_status_line()
    if line is None:
        ctx.exit(1)
    elif output in render.DATA:
        render.show_data(line._asdict(), output)
    else:
        click.echo(line.text)
