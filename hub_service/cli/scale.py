"""`runai scale`: let elastic jobs have more or fewer workers while they run."""

import click

from runai.hub_service.api.schemas import ScaleRequest, WorkloadView
from runai.hub_service.cli.lifecycle import for_each
from runai.hub_service.cli.naming import WORKLOAD_NAME, find_all, in_project
from runai.hub_service.cli.reporting import Command
from runai.hub_service.client import Client


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=WORKLOAD_NAME, metavar="NAME...", required=True)
@click.option("--workers", type=click.IntRange(min=2), help="As many workers at most.")
@click.option(
    "--min-workers", type=click.IntRange(min=1), help="As many at least: with fewer it waits."
)
@in_project
def scale(
    names: tuple[str, ...], workers: int | None, min_workers: int | None, project: str | None
) -> None:
    """Let elastic jobs have more or fewer workers.

    Those that run go on: more workers join when there is a GPU for them, and surplus ones
    leave with a checkpoint. For jobs submitted with --elastic and --workers.
    """
    if workers is None and min_workers is None:
        raise click.UsageError("Say --workers, --min-workers or both.")
    asked = ScaleRequest(workers=workers, min_workers=min_workers)
    with Client.discover() as client:

        def ask(workload: WorkloadView) -> str:
            elastic = client.scale(workload.id, asked).elastic
            return f"trains on {elastic.text}" if elastic else "scaled"

        for_each(find_all(client, names, project), ask)
