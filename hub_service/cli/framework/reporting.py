"""Error output of commands: one sentence and a hint on standard error, never a traceback.

Exit 1 for errors of the platform or the command, 2 for misuse (click's own), 130 for Ctrl-C.
With `-o json` the error is JSON too, still on standard error. All commands use `Command`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.printable import for_terminal, json_for_terminal

INTERRUPTED = 130
"""Exit code that shells report for a program ended by Ctrl-C."""

F = TypeVar("F", bound=Callable[..., Any])


class ReportedError(click.ClickException):
    """A platform error that click prints as a sentence and a hint."""

    def __init__(self, error: RunaiError, *, as_json: bool) -> None:
        """Store the error and its output format."""
        super().__init__(error.message)
        self.error = error
        self.as_json = as_json

    def show(self, file: Any = None) -> None:
        """Print the sentence and the hint."""
        report(self.error, as_json=self.as_json, file=file)


def report(error: RunaiError, *, as_json: bool = False, file: Any = None) -> None:
    """Print an error; the command continues."""
    if as_json:
        problem = {"code": error.code, "detail": error.message, "hint": error.hint}
        click.echo(json_for_terminal({"error": problem}), err=True, file=file)
        return
    for title, colour, text in (("Error:", "red", error.message), ("Hint:", "cyan", error.hint)):
        if text:
            shown = "\n".join(map(for_terminal, text.split("\n")))
            styled = click.style(title, fg=colour, bold=title == "Error:" or None)
            click.echo(f"{styled} {shown}", err=True, file=file)


class _ErrorReporting(click.Command):
    """Base of commands and groups that report errors as sentences."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; convert platform errors and Ctrl-C to an exit code."""
        try:
            return super().invoke(ctx)
        except RunaiError as error:
            raise ReportedError(error, as_json=ctx.params.get("output") == "json") from error
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)


class Command(_ErrorReporting):
    """A command that reports errors as sentences."""


class Group(_ErrorReporting, click.Group):
    """A group of commands that report errors as sentences."""

    command_class = Command


def output_option(*formats: str) -> Callable[[F], F]:
    """Return the decorator that adds `-o`; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How to print it.",
    )
