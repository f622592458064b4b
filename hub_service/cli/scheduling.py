"""`runai schedule`: the dry run, of a snapshot in a file and of the live system.

Parses and prints. A file is read by the scheduler's own program; the live system is asked by the
client. What `--add` and `--set` mean is `wishes`'.
"""

import click
from rich.text import Text

from runai.hub_service.api.questions import Effect, PlanQuestion, ProjectEffect, WhatIf
from runai.hub_service.cli import render
from runai.hub_service.cli.reporting import Command, output_option
from runai.hub_service.cli.wishes import ADDED, SETTING
from runai.hub_service.client import Client

__all__ = ["schedule"]

_EFFECTS = ("WORKLOAD", "PROJECT", "USER", "GPUS", "NOW", "THEN", "REASON")
_PROJECTS = ("PROJECT", "QUOTA", "FAIR SHARE", "ALLOCATED")


@click.command(cls=Command)
@click.argument("snapshot", required=False, metavar="[SNAPSHOT.json]")
@click.option("--jsonl", is_flag=True, help="One snapshot a line in, one plan a line out.")
@click.option("--explain", metavar="WORKLOAD", help="Why this one waits, and when it starts.")
@click.option("--live", is_flag=True, help="Ask the running platform; changes nothing there.")
@click.option(
    "--add",
    "added",
    multiple=True,
    type=ADDED,
    metavar="'PROJECT N GPUs'",
    help="With --live: if this were submitted, as in 'nlp 4 GPUs'. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    type=SETTING,
    metavar="PROJECT.SETTING=VALUE",
    help="With --live: if a project had this, as in vision.quota=6. Repeatable.",
)
@click.option(
    "--end",
    "ended",
    multiple=True,
    metavar="PROJECT/NAME",
    help="With --live: if this workload had ended. Repeatable.",
)
@output_option("table", "json")
@click.pass_context
def schedule(
    ctx: click.Context,
    snapshot: str | None,
    jsonl: bool,
    explain: str | None,
    live: bool,
    added: tuple[dict[str, object], ...],
    settings: tuple[dict[str, object], ...],
    ended: tuple[str, ...],
    output: str,
) -> None:
    """Print what would start, stop and wait, and why.

    \b
    runai schedule SNAPSHOT.json                  the plan for a snapshot (- is standard input)
    runai schedule --live --add "nlp 4 GPUs"      what if, on the running platform
    runai schedule --live --set vision.quota=6
    """  # noqa: D301 - \b is click's mark of a block
    if live:
        if snapshot is not None or jsonl or explain is not None:
            raise click.UsageError(
                "--live asks the running platform: leave out the snapshot, --jsonl and --explain"
                " (`runai describe NAME` explains a live workload)."
            )
        _live(added, settings, ended, output)
        return
    if added or settings or ended:
        raise click.UsageError("--add, --set and --end ask the running platform: add --live.")
    if snapshot is None:
        raise click.UsageError(
            "Name a snapshot, or - for standard input; or ask the running platform with --live."
        )
    from runai.hub_service.scheduler.__main__ import main  # noqa: PLC0415 - --live needs no scheduler

    arguments = [snapshot, *(["--jsonl"] if jsonl else [])]
    arguments += ["--explain", explain] if explain is not None else []
    ctx.exit(main(arguments))


def _live(
    added: tuple[dict[str, object], ...],
    settings: tuple[dict[str, object], ...],
    ended: tuple[str, ...],
    output: str,
) -> None:
    question = PlanQuestion.model_validate(
        {"add": list(added), "set": list(settings), "end": list(ended)}
    )
    with Client.discover() as client:
        answer = client.what_if(question)
    if output == "json":
        render.show_json(answer)
        return
    _show(answer)


def _show(answer: WhatIf) -> None:
    if answer.effects:
        rows = [_effect(effect) for effect in answer.effects]
        render.show_table(_EFFECTS, rows, fold="REASON")
    else:
        click.echo("Nothing that you may see would change.")
    if answer.others:
        counted = ", ".join(f"{count} {outcome}" for outcome, count in answer.others.items())
        click.echo(f"\nAmong workloads of others: {counted}.")
    moved = [project for project in answer.projects if _differs(project)]
    if moved:
        click.echo()
        render.show_table(_PROJECTS, [_project(project) for project in moved])


def _effect(effect: Effect) -> list[str | Text]:
    reason = render.reason(effect.reason)
    return [
        effect.workload,
        effect.project,
        effect.user or "-",
        render.gpus(effect.gpus),
        effect.before or "-",
        effect.after,
        reason,
    ]


def _differs(project: ProjectEffect) -> bool:
    return (project.fair_share_before, project.allocated_before) != (
        project.fair_share,
        project.allocated,
    )


def _project(project: ProjectEffect) -> list[str | Text]:
    return [
        project.name,
        render.quota(project.quota),
        _from_to(project.fair_share_before, project.fair_share),
        _from_to(project.allocated_before, project.allocated),
    ]


def _from_to(before: float, after: float) -> str:
    same = before == after
    return render.gpus(after) if same else f"{render.gpus(before)} -> {render.gpus(after)}"
