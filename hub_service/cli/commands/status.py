"""`runai status`: the status line, for a shell's prompt."""

import click

from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.output import render
from runai.hub_service.client.prompt import read_status_line


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
    line = read_status_line()
    if line is None:
        ctx.exit(1)
    elif output in render.DATA:
        render.show_data(line._asdict(), output)
    else:
        click.echo(line.text)
