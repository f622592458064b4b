"""The list of commands: name, module and summary, without an import of any command.

The summaries repeat the commands' own, so that `runai --help` needs no import; a test compares
them.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Final, NamedTuple

import click

from runai.hub_service.cli.framework.error_reporting import (
    ReportedError,
    colour_by_environment,
    not_installed,
    show_help_without,
)
from runai.hub_service.processes.requirements import unmet


class CommandEntry(NamedTuple):
    """Location of a command (`module:attribute` below `runai.hub_service.cli`) and its summary."""

    place: str
    summary: str


SECTIONS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "Workloads": {
        "submit": CommandEntry(
            "commands.submit:submit", "Submit a job, or with --interactive a session."
        ),
        "list": CommandEntry(
            "commands.listing:list_", "List jobs and sessions, projects or nodes."
        ),
        "describe": CommandEntry(
            "commands.describe:describe", "Show everything about a workload, project or node."
        ),
        "logs": CommandEntry("commands.logs_and_exec:logs", "Print the output of a workload."),
        "exec": CommandEntry(
            "commands.logs_and_exec:exec_", "Run a program on the GPUs of a running workload."
        ),
        "wait": CommandEntry(
            "commands.lifecycle:wait",
            "Wait until workloads are finished, and exit with the program's code.",
        ),
        "suspend": CommandEntry(
            "commands.lifecycle:suspend",
            "Suspend jobs: release their GPUs and remove them from the queue.",
        ),
        "resume": CommandEntry(
            "commands.lifecycle:resume", "Put suspended jobs back into the queue."
        ),
        "scale": CommandEntry(
            "commands.lifecycle:scale", "Change the number of workers of elastic jobs."
        ),
        "keep": CommandEntry("commands.lifecycle:keep", "Keep idle GPUs for 30 more minutes."),
        "release": CommandEntry(
            "commands.lifecycle:release", "Release the GPUs of sessions; the sessions continue."
        ),
        "regain": CommandEntry(
            "commands.lifecycle:regain", "Request the GPUs of released sessions again."
        ),
        "delete": CommandEntry(
            "commands.lifecycle:delete", "Stop workloads and remove them from the lists."
        ),
        "top": CommandEntry(
            "commands.top:top", "Show allocated GPUs, their utilization and waiting jobs."
        ),
        "status": CommandEntry(
            "commands.top:status",
            "Print your GPU, its use and the project's quota in one line, for a shell's prompt.",
        ),
        "usage": CommandEntry(
            "commands.usage:usage",
            "Show average allocation and utilization over time.",
        ),
    },
    "Projects and people": {
        "project": CommandEntry(
            "commands.projects:project", "Create, change, list and choose projects."
        ),
        "user": CommandEntry(
            "commands.accounts:user", "Manage the accounts of a platform started with `runai up`."
        ),
        "whoami": CommandEntry(
            "commands.login:whoami", "Show your user name, groups, projects and service."
        ),
    },
    "This computer": {
        "login": CommandEntry(
            "commands.login:login", "Log in to a JupyterHub that runs the platform."
        ),
        "logout": CommandEntry("commands.login:logout", "Forget the stored token."),
        "config": CommandEntry("commands.login:config", "Show or change the stored configuration."),
        "doctor": CommandEntry(
            "doctor.command:doctor", "Check the installation and the way to the hub."
        ),
        "completion": CommandEntry(
            "framework.completion:completion", "Print a shell's completion script."
        ),
        "version": CommandEntry("framework.command_list:version_", "Print the version."),
        "help": CommandEntry(
            "framework.command_list:help_", "Print the commands, or one's options."
        ),
    },
    "Platform": {
        "up": CommandEntry("commands.up:up", "Start the whole platform on this machine."),
        "backup": CommandEntry(
            "commands.backups:backup",
            "Copy the databases and secrets of a running or stopped platform.",
        ),
        "restore": CommandEntry(
            "commands.backups:restore", "Restore a backup of a stopped platform."
        ),
        "schedule": CommandEntry(
            "commands.schedule:schedule",
            "Print which workloads would start, stop and wait, with reasons.",
        ),
        "simulate": CommandEntry(
            "commands.simulate:simulate", "Replay a trace of jobs under a policy, in virtual time."
        ),
    },
}

PLURALS: Final = {"projects": "project", "users": "user"}
INSTEAD: Final = {
    "attach": "runai logs NAME -f",
    "get": "runai list",
    "port-forward": "kubectl port-forward on Kubernetes; jobs on one machine listen on it",
}
"""What to write instead of commands of the original `runai`, kubectl and Slurm."""
ALIASES: Final = {"bash": ("exec", ("-i", "-t", "--", "bash"))}
"""Commands of the original `runai` as ours: the command, and the words at the line's end."""


class LazyGroup(click.Group):
    """A group that imports a command only when it runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help of `runai` alone."""
        show_help_without(args, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest what was meant by an unknown one."""
        name = args[0]
        if name in ALIASES:
            name, words = ALIASES[name]
            args = [name, *args[1:], *words]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            replacement = INSTEAD.get(name)
            similar = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean '{similar[0]}'?" if similar else ""
            hint = f" Use: {replacement}." if replacement else hint
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the sections."""
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or return None for an unknown name.

        Raises:
            ReportedError: it needs the platform, and only the client is installed.
        """
        name = PLURALS.get(cmd_name, cmd_name)
        entry = next((s[name] for s in SECTIONS.values() if name in s), None)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        try:
            imported = import_module(f"runai.hub_service.cli.{module}")
        except ModuleNotFoundError as missing:
            if str(missing.name).startswith("runai") or unmet():
                raise  # a fault of ours, or a library of the client
            raise ReportedError(not_installed(), as_json=False) from missing
        command: click.Command = getattr(imported, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help's sections from `SECTIONS`, without imports."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in commands.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        _echo_version()
        ctx.exit()


def _echo_version() -> None:
    click.echo(f"runai {version('jupyter-runai')}")


@click.command("version")
def version_() -> None:
    """Print the version."""
    _echo_version()


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Print the commands, or one's options.

    \b
    runai help submit
    runai help project set
    """  # noqa: D301 - \b is click's mark of a block
    assert ctx.parent is not None
    cli.main([*command, "--help"], prog_name=ctx.parent.info_name, standalone_mode=False)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A NAME is exp1, or project/exp1 where that is not unique. "
    "`runai COMMAND --help` shows a command's options.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Share the GPUs of a JupyterHub: submit training jobs, see what waits and why.

    \b
    runai submit exp1 --gpus 0.5 -- python train.py    half a GPU for a job
    runai list                                         what runs, what waits and why
    runai logs exp1 -f                                 follow its output
    """  # noqa: D301 - \b is click's mark of a block
    ctx.color = colour_by_environment()
