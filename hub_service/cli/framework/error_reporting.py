"""Error output of commands: one sentence and a hint on standard error, never a traceback.

Exit 1 for errors of the platform or the command, 2 for misuse (click's own), 130 for Ctrl-C.
With `-o json` the error is JSON too, still on standard error. All commands use `Command`.
"""

import codecs
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, Final, TypeVar

import click

from runai.hub_service.processes.accounts.home_folder import removed_folder
from runai.hub_service.wire.errors import RunaiError, Unavailable
from runai.hub_service.wire.printable import for_terminal, json_for_terminal, printable

INTERRUPTED = 130
"""Exit code that shells report for a program ended by Ctrl-C."""

F = TypeVar("F", bound=Callable[..., Any])


def colour_by_environment() -> bool | None:
    """Return False if NO_COLOR is set; None: colours on terminals."""
    return False if os.environ.get("NO_COLOR") else None


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
            escaped = "\n".join(map(for_terminal, text.split("\n")))
            styled = click.style(title, fg=colour, bold=title == "Error:" or None)
            use_colour = colour_by_environment()  # no context is left when click shows an error
            click.echo(f"{styled} {escaped}", err=True, file=file, color=use_colour)


def not_installed() -> Unavailable:
    """Return the error of a command that needs the platform, where only its client is installed."""
    return Unavailable(
        "The platform itself is not installed here, only its client.",
        hint="pip install 'jupyter-runai[hub]'",
        code="not_installed",
    )


class _ErrorReporting(click.Command):
    """Base of commands and groups that report errors as sentences."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; convert platform errors and Ctrl-C to an exit code."""
        try:
            return super().invoke(ctx)
        except RunaiError as error:
            raise ReportedError(error, as_json=ctx.params.get("output") == "json") from error
        except OSError as failed:
            if failed.filename is None:  # output that cannot be written: `run`
                raise
            unusable = _unusable(failed)
            raise ReportedError(unusable, as_json=ctx.params.get("output") == "json") from failed
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)


class Command(_ErrorReporting):
    """A command that reports errors as sentences."""


class Group(_ErrorReporting, click.Group):
    """A group of commands that report errors as sentences."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help of a group without a command: it is no misuse."""
        if not self.invoke_without_command:
            show_help_without(args, ctx)
        return super().parse_args(ctx, args)


def show_help_without(args: Sequence[str], ctx: click.Context) -> None:
    """Print the help and exit with 0 if there are no arguments."""
    if not args and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _check_yaml(_ctx: click.Context, _param: click.Parameter, output: str) -> str:
    """Fail before the command has an effect whose result could not be printed."""
    if output == "yaml" and find_spec("yaml") is None:
        raise ReportedError(
            Unavailable("-o yaml needs PyYAML: pip install pyyaml", code="not_installed"),
            as_json=False,
        )
    return output


def output_option(*formats: str) -> Callable[[F], F]:
    """Return the decorator that adds `-o`; the first format is the default.

    `json` brings `yaml` with it.
    """
    at = formats.index("json") + 1
    return click.option(
        "-o",
        "--output",
        type=click.Choice([*formats[:at], "yaml", *formats[at:]]),
        callback=_check_yaml,
        default=formats[0],
        show_default=True,
        help="Print in this format.",
    )


LONGEST_NAME: Final = 200
ESCAPES: Final = "runai.escapes"
"""Error handler of encodings that lack a character: JSON's escapes, valid in JSON output too."""


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output's encoding lacks by JSON's escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2].hex() for i in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs), error.end


def run(command: Callable[[], object]) -> None:
    """Run the command line; output that cannot be encoded is escaped.

    Output that cannot be written ends with one sentence and exit 1.
    """
    codecs.register_error(ESCAPES, _escaped)
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, TextIOWrapper)]
    for stream in streams:
        stream.reconfigure(errors=ESCAPES)
    try:
        try:
            command()
        finally:
            for stream in streams:
                stream.flush()
    except OSError as failed:
        _report_and_discard(failed, streams)
        sys.exit(1)


def _unusable(failed: OSError) -> RunaiError:
    if isinstance(failed, FileNotFoundError) and (removed := removed_folder()):
        where = f"{printable(removed, LONGEST_NAME)}, the current folder, was removed."
        return RunaiError(where, hint="Go to one that exists: cd.")
    what = "The output cannot be written"
    if failed.filename is not None:
        what = f"{printable(str(failed.filename), LONGEST_NAME)} cannot be used"
    return RunaiError(f"{what}: {(failed.strerror or str(failed)).lower()}.")


def _report_and_discard(failed: OSError, streams: list[TextIOWrapper]) -> None:
    """Report a failed write, and discard what is left: Python writes it again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        if failed.errno != errno.EPIPE:
            report(_unusable(failed))
            sys.stderr.flush()
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
