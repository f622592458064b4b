"""`runai schedule`: dry run of a snapshot file or of the live system.

The scheduler's own program reads a file; `what_if` asks the live system. Each is imported only when
needed, since scripts run this command for one snapshot after another.
"""

import click

from runai.hub_service.cli.framework.error_reporting import Command, output_option


@click.command(cls=Command)
@click.argument("snapshot", required=False, metavar="[SNAPSHOT.json]")
@click.option("--jsonl", is_flag=True, help="Read one snapshot a line, and print one plan a line.")
@click.option(
    "--explain", metavar="NAME", help="Explain why this workload waits, and when it starts."
)
@click.option("--live", is_flag=True, help="Ask the running platform, without changing it.")
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="'PROJECT N GPUs'",
    help="Suppose this submission, such as 'nlp 4 GPUs' (with --live). May be repeated.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PROJECT.SETTING=VALUE",
    help="Suppose this setting, such as vision.quota=6 (with --live). May be repeated.",
)
@click.option(
    "--end",
    "ended",
    multiple=True,
    metavar="PROJECT/NAME",
    help="Suppose the end of this workload (with --live). May be repeated.",
)
@output_option("table", "json")
@click.pass_context
def schedule(
    ctx: click.Context,
    snapshot: str | None,
    jsonl: bool,
    explain: str | None,
    live: bool,
    added: tuple[str, ...],
    settings: tuple[str, ...],
    ended: tuple[str, ...],
    output: str,
) -> None:
    """Print which workloads would start, stop and wait, with reasons.

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
        from runai.hub_service.cli.output.what_if import send_question  # noqa: PLC0415 - a file needs no client

        send_question(added, settings, ended, output)
        return
    if added or settings or ended:
        raise click.UsageError("--add, --set and --end ask the running platform: add --live.")
    if output == "yaml":
        raise click.UsageError("The plan of a snapshot is JSON: leave -o yaml out.")
    if snapshot is None:
        raise click.UsageError(
            "Name a snapshot, or - for standard input; or ask the running platform with --live."
        )
    from runai.hub_service.scheduler.__main__ import main  # noqa: PLC0415 - --live needs no scheduler

    arguments = [snapshot, *(["--jsonl"] if jsonl else [])]
    arguments += ["--explain", explain] if explain is not None else []
    ctx.exit(main(arguments))
