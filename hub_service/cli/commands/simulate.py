"""`runai simulate`: replay of a trace of jobs on a cluster with quotas.

Input is files, or with `--history` the platform's own past; output is figures and a picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.param_types import TRACE_TIME
from runai.hub_service.cli.output import render
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.client import Client
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

_POLICIES: Final = (
    "static-whole",
    "static-strict",
    "static",
    "pool-strict",
    "pool",
    "quota",
    "quota-without-moves",
)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=Command)
@click.option(
    "--trace", type=_FILE, metavar="FILE", help="Read the jobs from this CSV file, also as .gz."
)
@click.option(
    "--cluster",
    metavar="NxN|FILE",
    help="Use this many nodes times GPUs (195x8), or the nodes of a JSON file.",
)
@click.option(
    "--history",
    metavar="DURATION",
    help="Replay this much of the platform's past (30d) on its nodes (hub admins).",
)
@click.option(
    "--projects",
    type=_FILE,
    metavar="FILE",
    help="Read the projects' quotas from this projects.yaml.",
)
@click.option(
    "--policy",
    type=click.Choice(_POLICIES),
    help="Schedule by this policy. static gives every project a private part (static-whole: of"
    " whole GPUs), pool has no quotas, strict skips no job in its queue. Default: quota, the"
    " shipped policy, or with --history the platform's own.",
)
@click.option("--from", "since", type=TRACE_TIME, help="Measure from this time of the trace.")
@click.option(
    "--to", "until", type=TRACE_TIME, help="Measure until this time of the trace; drain the rest."
)
@click.option(
    "--seed", type=int, metavar="N", help="Shuffle the jobs of each second with this seed."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PROJECT.FIELD=VALUE",
    help="Change a project first, as in vision.quota=6. May be repeated.",
)
@click.option(
    "--picture",
    type=_FILE,
    metavar="FILE",
    help="Draw a picture of the allocations: .svg, .html or .png.",
)
@output_option("table", "json")
def simulate(**given: Any) -> None:
    """Replay a trace of jobs under a policy, in virtual time.

    The scheduler of the running platform decides; nothing is started. A trace is a CSV file with
    the columns job,project,submit_s,gpus,duration_s.

    \b
    runai simulate --trace jobs.csv --cluster 4x8 --projects projects.yaml
    runai simulate --trace jobs.csv --cluster nodes.json --projects projects.yaml --policy static
    runai simulate --history 30d --set vision.quota=6 --picture after.svg
    """  # noqa: D301 - \b is click's mark of a block
    _expect_hub_extra()
    from runai.hub_service.simulation import run_pictures  # noqa: PLC0415 - see above
    from runai.hub_service.simulation.engine import Setting  # noqa: PLC0415
    from runai.hub_service.simulation.engine import simulate as replay  # noqa: PLC0415
    from runai.hub_service.simulation.policies import quotas_of  # noqa: PLC0415
    from runai.hub_service.simulation.results import as_json  # noqa: PLC0415
    from runai.hub_service.simulation.timeline import AllocationTimeline  # noqa: PLC0415

    path: Path | None = given["picture"]
    if path is not None and path.suffix.lower() not in run_pictures.SUFFIXES:
        endings = ", ".join(run_pictures.SUFFIXES)
        raise InvalidRequest(
            f"{path} is not a valid name of a picture.", hint=f"End it in {endings}."
        )
    if path is not None and not path.parent.is_dir():
        # Fail now, not after a run of a quarter of an hour.
        raise InvalidRequest(f"There is no folder {path.parent}.", hint="Make it first.")
    replayed = _read_input(given)
    rows, nodes, projects = replayed.rows, replayed.nodes, replayed.projects
    since = replayed.since if given["since"] is None else given["since"]
    until = replayed.until if given["until"] is None else given["until"]
    policy: Any = given["policy"] or "quota"
    setting = Setting(
        nodes=nodes, projects=projects, since=since, until=until, **replayed.platform_settings
    )
    if given["until"] is None and until <= since:  # all jobs of the trace come in one second
        until = replay(rows, policy, setting).ended_s
        setting = replace(setting, until=until)
    if until <= since:
        raise InvalidRequest(
            f"There is nothing to measure from second {since} to second {until}.",
            hint=f"Jobs are submitted from second {rows[0].submit_s} to {rows[-1].submit_s}; say by"
            " --to until when to measure.",
        )
    quotas = quotas_of(projects)
    timeline = AllocationTimeline(quotas, since, until) if path is not None else None
    with show_progress(f"Replaying {len(rows)} jobs") as update:
        run = replay(
            rows,
            policy,
            setting,
            timeline=timeline,
            progress=lambda ended: update(f"{ended} ended", ended, len(rows)),
        )
    if run.never_ran:
        click.echo(
            f"{run.never_ran} of {len(rows)} jobs never ran: there is no place for them. They"
            " count in no figure.",
            err=True,
        )
    figures = as_json(run.results)
    if given["output"] in render.DATA:
        render.show_data(figures, given["output"])
    else:
        render.show_lines(_figure_lines(figures))
    if timeline is not None and path is not None:
        timeline.close()
        column = run_pictures.RunColumn(title=policy, results=run.results, timeline=timeline)
        name = given["trace"].name if given["trace"] else f"The last {given['history']}"
        capacity = 1000 * sum(node.devices for node in nodes)
        run_pictures.write_picture(
            path, f"{name} on {capacity // 1000} GPUs", [column], quotas, capacity
        )


def _expect_hub_extra() -> None:
    """Raise Unavailable without the libraries of the platform."""
    try:
        import yaml  # noqa: F401, PLC0415 - the only library missing in the base install
    except ImportError:
        raise Unavailable(
            "Simulations need the platform, which is not installed here, only its client.",
            hint="pip install 'jupyter-runai[hub]'",
            code="not_installed",
        ) from None


@dataclass(frozen=True, kw_only=True)
class _ReplayInput:
    """Input of a replay: jobs, cluster, projects; measured from `since` to `until`."""

    rows: Sequence[Any]
    nodes: Sequence[Any]
    specs: Sequence[Any]
    since: int
    until: int
    created: Mapping[str, int] | None = None
    platform_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the `Setting`, from the platform."""
    projects: Sequence[Any] = ()


def _read_input(given: dict[str, Any]) -> _ReplayInput:
    """Read jobs, nodes and projects, and apply `--set` and `--seed`."""
    from runai.hub_service.simulation import settings, traces  # noqa: PLC0415 - needs the extra

    loaded = (_from_files if given["history"] is None else _from_history)(given)
    specs = settings.with_changes(loaded.specs, given["changes"])
    rows = loaded.rows if given["seed"] is None else traces.shuffled(loaded.rows, given["seed"])
    projects = settings.projects_for_core(
        specs, loaded.created, {node.gpu_type for node in loaded.nodes}
    )
    return replace(loaded, rows=rows, projects=projects)


def _from_files(given: dict[str, Any]) -> _ReplayInput:
    """Read the input from the files of --trace, --cluster and --projects."""
    from runai.hub_service.model.admin_files import read_projects  # noqa: PLC0415 - needs the extra
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
    return _ReplayInput(
        rows=rows, nodes=nodes, specs=specs, since=rows[0].submit_s, until=rows[-1].submit_s
    )


def _from_history(given: dict[str, Any]) -> _ReplayInput:
    """Read the input from the platform; given files replace its nodes or projects."""
    from runai.hub_service.model.admin_files import read_projects  # noqa: PLC0415 - needs the extra
    from runai.hub_service.simulation import jobs, platform_history, settings  # noqa: PLC0415

    if given["trace"] is not None:
        raise InvalidRequest(
            "--history and --trace both say which jobs to replay.", hint="Give one of them."
        )
    now = datetime.now(UTC)
    since = now - timedelta(seconds=platform_history.seconds_of(given["history"]))
    with show_progress("Asking for the history"), Client.discover() as client:
        past, today = client.history(since), platform_history.CurrentCluster.read(client.snapshot())
    if not past:
        raise InvalidRequest(
            f"Nothing held a GPU in the last {given['history']}.", hint="Try a longer time."
        )
    specs, nodes = today.specs, today.nodes
    if given["projects"] is not None:
        specs = read_projects(given["projects"])
    if given["cluster"] is not None:
        nodes = settings.read_cluster(given["cluster"])
    known = {spec.name for spec in specs}
    rows = [row for row in platform_history.rows_of(past) if row.project in known]
    if not rows:
        raise InvalidRequest(
            f"What held a GPU in the last {given['history']} is of other projects.",
            hint=f"Projects: {', '.join(sorted(known)) or 'none'}.",
        )
    for sentence in platform_history.left_out(past, rows, today):
        click.echo(sentence, err=True)
    return _ReplayInput(
        rows=rows,
        nodes=nodes,
        specs=specs,
        # Some jobs were submitted before the range, and some still run today.
        since=max(rows[0].submit_s, int(since.timestamp())),
        # To the end of this second, in which the first job may have been submitted.
        until=int(now.timestamp()) + 1,
        created=today.created,
        platform_settings={
            "policy": today.policy,
            "every": platform_history.EVERY_S,
            "beyond": jobs.PERMILLE,
        },
    )


def _figure_lines(figures: dict[str, Any]) -> list[tuple[str, str]]:
    f = figures
    return [
        ("Allocated", f"{f['allocated_pct']:.1f} %  (useful {f['useful_pct']:.1f} %)"),
        *([] if f["utilized_pct"] is None else [("Utilized", f"{f['utilized_pct']:.1f} %")]),
        ("Wait", _mean_median_p99(f, "wait")),
        ("Submission to end", _mean_median_p99(f, "jct")),
        ("Pauses", f"{f['pauses']}  (moves {f['moves']}, work lost {f['lost_pct']:.2f} %)"),
        ("Quota not honoured", f"{f['violation_h']:.1f} project-hours"),
        ("Worse off than alone", f"{f['worse_than_alone']} projects"),
        ("Fairness (Jain)", f"{f['jain']:.3f}"),
        ("Jobs", f"{f['jobs']:,}"),
    ]


def _mean_median_p99(figures: dict[str, Any], what: str) -> str:
    mean, middle, worst = (figures[f"{what}_{part}_h"] for part in ("mean", "p50", "p99"))
    return f"{mean:.2f} h on average  (half {middle:.2f} h, 99 in 100 {worst:.2f} h)"
