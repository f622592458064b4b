"""The program after `--` in `submit` and `exec`: parsing, and a check that it exists."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

import click

from runai.hub_service.cli.framework.error_reporting import Command
from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.processes.user_environment import UserEnvironment
from runai.hub_service.wire.errors import InvalidRequest

_SCRIPT_ENDINGS: Final = (".py", ".sh")
_INTERPRETERS: Final = ("python", "bash", "sh", "zsh", "ipython", "torchrun")
_NO_SCRIPT_FOLLOWS: Final = ("-m", "-c")
_SYSTEM: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class ProgramCommand(Command):
    """A command with all arguments after the first `--` in the parameter `program`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--`; click would drop the dashes and mix both halves."""
        own_arguments, program = args, list[str]()
        if "--" in args:
            dashes_at = args.index("--")
            own_arguments, program = args[:dashes_at], args[dashes_at + 1 :]
        rest = super().parse_args(ctx, own_arguments)
        if not program and not ctx.resilient_parsing:
            raise click.UsageError(
                "There is nothing to run: put the program behind --, as in "
                f"`{ctx.command_path} … -- python train.py`.",
                ctx,
            )
        ctx.params["program"] = tuple(program)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the program to the usage line."""
        return [*super().collect_usage_pieces(ctx), "--", "PROGRAM", "[ARGUMENTS]..."]


def absolute_workdir(workdir: str | None) -> Path:
    """Return the absolute working directory of the program.

    Raises:
        InvalidRequest: it does not exist.
    """
    folder = expanded(workdir or ".").resolve()
    if not folder.is_dir():
        raise InvalidRequest(
            f"There is no directory {folder}.", hint="Name another one with --workdir."
        )
    return folder


def check_program(program: Sequence[str], folder: Path, path: str | None = None) -> None:
    """Check that a program exists, and the script in its arguments.

    `path` is the job's own PATH, if it sets one.

    Raises:
        InvalidRequest: one of them does not.
    """
    script = _user_script(program)
    if script is None or (folder / script).is_file():
        _check_executable(program[0], folder, path)
        return
    where = "" if PurePath(script).is_absolute() else f" in {folder}"
    raise InvalidRequest(
        f"There is no script {script}{where}.",
        hint="Check its name, or say with --workdir where it is.",
        code="script_missing",
    )


def _check_executable(name: str, folder: Path, path: str | None) -> None:
    """Check that a program is found as the job will find it.

    Raises:
        InvalidRequest: it is not.
    """
    # The job's PATH is the user's programs, this platform's, then the service's PATH, which is not
    # known here.
    platform_folders = UserEnvironment(Path(os.environ.get("HOME", "/"))).path()
    folders = (os.environ.get("PATH", ""), *platform_folders, os.defpath, *_SYSTEM)
    search_path = os.pathsep.join(folders) if path is None else path
    if (folder / name).exists() if "/" in name else shutil.which(name, path=search_path):
        return
    raise InvalidRequest(
        f"There is no program {name}{f' in {folder}' if name.startswith('.') else ''}.",
        hint="Check its name, or write its full path; the shell's own commands need sh -c.",
        code="program_missing",
    )


def _user_script(program: Sequence[str]) -> str | None:
    """Return the argument that is certainly a script of the user, else None."""
    executable, *rest = program
    if executable.endswith(_SCRIPT_ENDINGS):
        # Without a slash, PATH is searched.
        return executable if "/" in executable else None
    if not PurePath(executable).name.rstrip("0123456789.").startswith(_INTERPRETERS):
        return None
    for argument in rest:
        if argument in _NO_SCRIPT_FOLLOWS:
            return None
        if not argument.startswith("-"):
            return argument if argument.endswith(_SCRIPT_ENDINGS) else None
    return None
