"""`runai doctor`: run the checks and print their findings; exit 1 if a check failed."""

from typing import Final

import click

from runai.hub_service.cli.doctor import Finding
from runai.hub_service.cli.doctor.checks import examine
from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.output import render
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.wire.printable import for_terminal

_COLOURS: Final = {"ok": "green", "note": "cyan", "failure": "red"}


@click.command(cls=Command)
@click.option(
    "--data-dir",
    envvar="RUNAI_DATA_DIR",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Check this data directory of `runai up` too. Default: the usual one, if it is there.",
)
@output_option("table", "json")
@click.pass_context
def doctor(ctx: click.Context, data_dir: str | None, output: str) -> None:
    """Check the installation and the way to the hub.

    It prints a line for each check, and a remedy below each failure.

    \b
    runai doctor
    runai doctor --data-dir .data -o json
    """  # noqa: D301 - \b is click's mark of a block
    with show_progress("Examining this computer and the way to the hub"):
        findings = examine(data_dir)
    if output in render.DATA:
        render.show_data([finding._asdict() for finding in findings], output)
    else:
        for finding in findings:
            _show(finding)
    ctx.exit(int(any(finding.verdict == "failure" for finding in findings)))


def _show(finding: Finding) -> None:
    verdict = click.style(f"{finding.verdict:<7}", fg=_COLOURS[finding.verdict])
    click.echo(f"{verdict}  {finding.subject:<14} {for_terminal(finding.text)}")
    if finding.mend:
        click.echo(f"{'':<24} {for_terminal(finding.mend)}")
