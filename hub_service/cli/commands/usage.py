"""`runai usage`: average allocation and utilization per project, user or node."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.param_types import DURATION
from runai.hub_service.cli.output import render
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.client import Client, texts
from runai.hub_service.wire.usage_schemas import UsageKind

HEADER: Final = ("NAME", "ALLOCATED", "UTIL", "GPU-HOURS", "USED", "IDLE")
KINDS: Final[Mapping[str, UsageKind]] = {"projects": "project", "users": "user", "nodes": "node"}


@click.command(cls=Command)
@click.argument(
    "what", type=click.Choice(list(KINDS)), default="projects", metavar="[projects|users|nodes]"
)
@click.option(
    "--since",
    type=DURATION,
    default="1d",
    show_default=True,
    help="Average over this long until now (6h, 30d).",
)
@output_option("table", "json")
def usage(what: str, since: int, output: str) -> None:
    """Show average allocation and utilization over time.

    IDLE are allocated GPU-hours with less than 1 % utilization. Hub admins see all users, other
    users themselves. Names without GPU-hours are left out.

    \b
    runai usage --since 7d
    runai usage users --since 30d -o json
    """  # noqa: D301 - \b is click's mark of a block
    with show_progress("Adding up"), Client.discover() as client:
        summaries = client.usage_by(KINDS[what], since=datetime.now(UTC) - timedelta(seconds=since))
        simulated = any(d.simulated for node in client.nodes() for d in node.devices)
    if output in render.DATA:
        render.show_data(summaries, output)
        return
    if not summaries:
        click.echo("Nobody that you may see held a GPU then.", err=True)
        return
    rows = [
        [
            summary.name,
            "-" if summary.allocated_average is None else f"{summary.allocated_average:.2f}",
            texts.share(summary.used_gpu_hours, summary.allocated_gpu_hours, simulated=simulated),
            f"{summary.allocated_gpu_hours:.2f}",
            f"{summary.used_gpu_hours:.2f}",
            f"{summary.idle_gpu_hours:.2f}",
        ]
        for summary in sorted(summaries, key=lambda summary: -summary.allocated_gpu_hours)
    ]
    render.show_table(HEADER, rows)
    if simulated:
        click.echo(texts.SIMULATED_NOTE)
