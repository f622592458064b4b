"""`runai simulate`: what a cluster and its quotas would have made of a trace of jobs.

Knows options, the progress bar and the table; the run is `runai.hub_service.simulation`'s. Files
go in, or with `--history` what the platform remembers; figures and a picture come out.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from runai.hub_service.cli.render import show_json, show_lines
from runai.hub_service.cli.reporting import Command, output_option
from runai.hub_service.client import Client
from runai.hub_service.errors import InvalidRequest, Unavailable

__all__ = ["simulate"]

_POLICIES: Final = (
    "static-strict",
    "static",
    "pool-strict",
    "pool",
    "quota",
    "quota+consolidate",
)
_FILE = click.Path(path_type=Path, dir_okay=False)
_SECONDS = click.IntRange(min=0)


@click.command(cls=Command)
@click.option("--trace", type=_FILE, metavar="JOBS.csv", help="The jobs; .gz is read too.")
@click.option(
    "--cluster", metavar="195x8|FILE", help="Nodes times GPUs, or a JSON file with a list of nodes."
)
@click.option(
    "--history",
    metavar="30d",
    help="Replay the platform's own last days instead, on its nodes (hub admins).",
)
@click.option("--projects", type=_FILE, metavar="PROJECTS.yaml", help="The projects' quotas.")
@click.option(
    "--policy",
    type=click.Choice(_POLICIES),
    default="quota",
    show_default=True,
    help="static: every project its private part; pool: no quotas;"
    " strict: first in, first out, without skipping.",
)
@click.option("--from", "since", type=_SECONDS, metavar="S", help="Measure from this second on.")
@click.option(
    "--to", "until", type=_SECONDS, metavar="S", help="Measure until here; drain the rest."
)
@click.option("--seed", type=int, metavar="N", help="Shuffle jobs of the same second.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PROJECT.FIELD=VALUE",
    help="Change a project first, as in vision.quota=6; repeatable.",
)
@click.option(
    "--picture", type=_FILE, metavar="FILE", help="Draw who held what: .svg, .html or .png."
)
@output_option("table", "json")
def simulate(**given: Any) -> None:
    """Replay a trace of jobs under a policy, in virtual time.

    The scheduler of the running platform decides; nothing is started. A trace is a CSV file with
    the columns job,project,submit_s,gpus,duration_s.

    \b
    runai simulate --trace jobs.csv --cluster 4x8 --projects projects.yaml
    runai simulate ... --set vision.quota=6 --picture after.svg
    runai simulate ... --policy static -o json
    runai simulate --history 30d --set vision.quota=6
    """  # noqa: D301 - \b is click's mark of a block
    _needs_the_hub_extra()
    from runai.hub_service.simulation import picture  # noqa: PLC0415 - see above
    from runai.hub_service.simulation.engine import Setting  # noqa: PLC0415
    from runai.hub_service.simulation.engine import simulate as replay  # noqa: PLC0415
    from runai.hub_service.simulation.policies import quotas_of  # noqa: PLC0415
    from runai.hub_service.simulation.results import as_json  # noqa: PLC0415
    from runai.hub_service.simulation.timeline import Timeline  # noqa: PLC0415

    path: Path | None = given["picture"]
    if path is not None and path.suffix.lower() not in picture.SUFFIXES:
        endings = ", ".join(picture.SUFFIXES)
        raise InvalidRequest(f"{path} is no name for a picture.", hint=f"End it in {endings}.")
    rows, nodes, projects = _what_to_replay(given)
    since = rows[0].submit_s if given["since"] is None else given["since"]
    until = rows[-1].submit_s if given["until"] is None else given["until"]
    if until <= since:
        raise InvalidRequest(
            f"There is nothing to measure from second {since} to second {until}.",
            hint=f"The trace's jobs are submitted from {rows[0].submit_s} to {rows[-1].submit_s}.",
        )
    setting = Setting(nodes=nodes, projects=projects, since=since, until=until)
    quotas = quotas_of(projects)
    timeline = Timeline(quotas, since, until) if path is not None else None
    with _progress(len(rows)) as progress:
        run = replay(rows, given["policy"], setting, timeline=timeline, progress=progress)
    if run.never_ran:
        click.echo(
            f"{run.never_ran} of {len(rows)} jobs never ran: there is no place for them. They"
            " count in no figure.",
            err=True,
        )
    if timeline is not None and path is not None:
        timeline.close()
        column = picture.Column(title=given["policy"], results=run.results, timeline=timeline)
        name = given["trace"].name if given["trace"] else f"The last {given['history']}"
        capacity = 1000 * sum(node.devices for node in nodes)
        picture.write_picture(
            path, f"{name} on {capacity // 1000} GPUs", [column], quotas, capacity
        )
    figures = as_json(run.results)
    if given["output"] == "json":
        show_json(figures)
    else:
        show_lines(_lines(figures))


def _needs_the_hub_extra() -> None:
    try:
        import yaml  # noqa: F401, PLC0415 - the one library that the base install lacks
    except ImportError:
        raise Unavailable(
            "Simulations need the platform, which is not installed here, only its client.",
            hint="pip install 'jupyter-runai[hub]'",
            code="not_installed",
        ) from None


def _what_to_replay(given: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Read the jobs, the nodes and the projects."""
    from runai.hub_service.simulation import settings, traces  # noqa: PLC0415 - needs the extra

    read = _from_files if given["history"] is None else _from_history
    rows, nodes, specs = read(given)
    if given["seed"] is not None:
        rows = traces.shuffled(rows, given["seed"])
    return rows, nodes, settings.projects_for_core(settings.with_changes(specs, given["changes"]))


def _from_files(given: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    from runai.hub_service.projects_file import read_projects  # noqa: PLC0415 - needs the extra
    from runai.hub_service.simulation import settings, traces  # noqa: PLC0415

    for option in ("trace", "cluster", "projects"):
        if given[option] is None:
            raise InvalidRequest(
                f"--{option} is missing.",
                hint="A run needs --trace, --cluster and --projects; or --history 30d alone.",
            )
    nodes = settings.read_cluster(given["cluster"])
    specs = read_projects(given["projects"])
    rows = traces.read_trace(given["trace"])
    if not rows:
        raise InvalidRequest(f"{given['trace']} has no jobs.")
    return rows, nodes, specs


def _from_history(given: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Ask the platform; a file stands in for what the platform would say."""
    from runai.hub_service.projects_file import read_projects  # noqa: PLC0415 - needs the extra
    from runai.hub_service.simulation import history, settings  # noqa: PLC0415

    if given["trace"] is not None:
        raise InvalidRequest(
            "--history and --trace both say which jobs to replay.", hint="Give one of them."
        )
    since = datetime.now(UTC) - timedelta(seconds=history.seconds_of(given["history"]))
    with Client.discover() as client:
        rows = history.rows_of(client.history(since))
        views, nodes = client.projects(), history.nodes_of(client.nodes())
    if not rows:
        raise InvalidRequest(
            f"Nothing held a GPU in the last {given['history']}.", hint="Try a longer time."
        )
    specs = history.specs_of(views)
    if given["projects"] is not None:
        specs = read_projects(given["projects"])
    if given["cluster"] is not None:
        nodes = settings.read_cluster(given["cluster"])
    known = {spec.name for spec in specs}
    return [row for row in rows if row.project in known], nodes, specs


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Show a bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only where somebody watches
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs ended", total=total)
        yield lambda ended: bar.update(task, completed=ended)


def _lines(figures: dict[str, Any]) -> list[tuple[str, str]]:
    f = figures
    return [
        ("Allocated", f"{f['allocated_pct']:.1f} %  (useful {f['useful_pct']:.1f} %)"),
        ("Wait", _three(f, "wait")),
        ("Submission to end", _three(f, "jct")),
        ("Pauses", f"{f['pauses']}  (moves {f['moves']}, work lost {f['lost_pct']:.2f} %)"),
        ("Quota not honoured", f"{f['violation_h']:.1f} project-hours"),
        ("Worse off than alone", f"{f['worse_than_alone']} projects"),
        ("Fairness (Jain)", f"{f['jain']:.3f}"),
        ("Jobs", f"{f['jobs']:,}"),
    ]


def _three(figures: dict[str, Any], what: str) -> str:
    mean, middle, worst = (figures[f"{what}_{part}_h"] for part in ("mean", "p50", "p99"))
    return f"{mean:.2f} h on average  (half {middle:.2f} h, 99 in 100 {worst:.2f} h)"
