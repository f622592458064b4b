"""How a command fails: one sentence and the way out on standard error, never a traceback.

Exit 1 for what the platform or the command refuses, 2 for misuse (click's own), 130 for Ctrl-C.
With `-o json` the error is JSON too, still on standard error. All commands are made of `Command`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.printable import for_terminal, json_for_terminal

INTERRUPTED = 130
"""What a shell reports for a program ended by Ctrl-C."""

F = TypeVar("F", bound=Callable[..., Any])


class ReportedError(click.ClickException):
    """An error of the platform on its way to the terminal."""

    def __init__(self, error: RunaiError, *, as_json: bool) -> None:
        """Keep what is printed."""
        super().__init__(error.message)
        self.error = error
        self.as_json = as_json

    def show(self, file: Any = None) -> None:
        """Print the sentence and the hint."""
        report(self.error, as_json=self.as_json, file=file)


def report(error: RunaiError, *, as_json: bool = False, file: Any = None) -> None:
    """Print an error without ending the command."""
    if as_json:
        problem = {"code": error.code, "detail": error.message, "hint": error.hint}
        click.echo(json_for_terminal({"error": problem}), err=True, file=file)
        return
    for title, colour, text in (("Error:", "red", error.message), ("Hint:", "cyan", error.hint)):
        if text:
            shown = "\n".join(map(for_terminal, text.split("\n")))
            styled = click.style(title, fg=colour, bold=title == "Error:" or None)
            click.echo(f"{styled} {shown}", err=True, file=file)


class _Reporting(click.Command):
    """What is common to both: refusals are sentences."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; turn the platform's errors and Ctrl-C into an exit code."""
        try:
            return super().invoke(ctx)
        except RunaiError as error:
            raise ReportedError(error, as_json=ctx.params.get("output") == "json") from error
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)


class Command(_Reporting):
    """A command whose refusals are sentences."""


class Group(_Reporting, click.Group):
    """A group of such commands."""

    command_class = Command


def output_option(*formats: str) -> Callable[[F], F]:
    """Add `-o`: the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How to print it.",
    )
