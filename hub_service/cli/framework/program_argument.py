"""The program behind `--`: taken as it stands, and looked at before anything is sent.

Used by `submit` and `exec`. Knows which arguments look like a script; runs nothing.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

import click

from runai.hub_service.cli.framework.reporting import Command
from runai.hub_service.wire.errors import InvalidRequest

_SCRIPT_ENDINGS: Final = (".py", ".sh")
_INTERPRETERS: Final = ("python", "bash", "sh", "zsh", "ipython", "torchrun")
_NO_SCRIPT_FOLLOWS: Final = ("-m", "-c")


class CommandAfterDashes(Command):
    """A command whose last argument is everything behind the first `--`, given as `program`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`; click would drop the dashes and mix both halves."""
        own, program = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, program = args[:at], args[at + 1 :]
        rest = super().parse_args(ctx, own)
        if not program and not ctx.resilient_parsing:
            raise click.UsageError(
                "There is nothing to run: put the program behind --, as in "
                f"`{ctx.command_path} … -- python train.py`.",
                ctx,
            )
        ctx.params["program"] = tuple(program)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Write the program into the usage line."""
        return [*super().collect_usage_pieces(ctx), "--", "PROGRAM", "[ARGUMENTS]..."]


def absolute_workdir(workdir: str | None) -> Path:
    """Return the directory in which the program will run.

    Raises:
        InvalidRequest: it is not there.
    """
    folder = Path(workdir or ".").expanduser().resolve()
    if not folder.is_dir():
        raise InvalidRequest(
            f"There is no directory {folder}.", hint="Name another one with --workdir."
        )
    return folder


def check_script(program: Sequence[str], folder: Path) -> None:
    """Make sure that a script which the program names is there.

    Raises:
        InvalidRequest: it is not.
    """
    script = _script(program)
    if script is None or (folder / script).is_file():
        return
    where = "" if PurePath(script).is_absolute() else f" in {folder}"
    raise InvalidRequest(
        f"There is no script {script}{where}.",
        hint="Check its name, or say with --workdir where it is.",
        code="script_missing",
    )


def _script(program: Sequence[str]) -> str | None:
    """Return the argument that is certainly meant to be a script of the user's own."""
    first, *rest = program
    if first.endswith(_SCRIPT_ENDINGS):
        # Without a slash it is looked up in PATH.
        return first if "/" in first else None
    if not PurePath(first).name.rstrip("0123456789.").startswith(_INTERPRETERS):
        return None
    for argument in rest:
        if argument in _NO_SCRIPT_FOLLOWS:
            return None
        if not argument.startswith("-"):
            return argument if argument.endswith(_SCRIPT_ENDINGS) else None
    return None
