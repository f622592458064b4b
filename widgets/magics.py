"""The magics `%runai_submit`, `%%runai_submit`, `%runai_list`, …: the command line in a notebook.

They take the options of `runai submit` and return at once, jobs as live views. Errors are shown as
one sentence without a traceback.
"""

import re
import shlex
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.client.notebook_program import is_notebook
from runai.hub_service.client.request_options import request_options, request_values
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.workload_request import option_of
from runai.widgets import text
from runai.widgets.gpu_cell import CellMeter
from runai.widgets.jobs import Job, Jobs, dry_run, send
from runai.widgets.link import link
from runai.widgets.panel import Panel, own_session, status
from runai.widgets.request import (
    cell_command,
    program_command,
    submit_request,
    with_module_path,
)


class CellFailed(Exception):
    """Failure of the measured cell, which has shown its traceback. Later cells do not run."""

    def _render_traceback_(self) -> list[str]:
        return []


F = TypeVar("F", bound=Callable[..., Any])


def _with_usage_errors(magic: F) -> F:
    """Convert errors to IPython's UsageError, which is shown without a traceback."""

    @wraps(magic)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the magic's signature
        try:
            return magic(*args, **kwargs)
        except RunaiError as error:
            raise UsageError(str(error)) from None

    return wrapper  # type: ignore[return-value]


_QUOTED_OR_HASH = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|#""", re.DOTALL)

_PYTHON_FIRST = re.compile(r"\s*(python[\d.]*)\s+[^\s-]")


def _without_comment(line: str) -> str:
    """Return the line up to its comment: front ends paint all behind a `#` outside quotes as one.

    Inside a word a shell keeps the `#`, so there it is refused: the user says which is meant.
    """
    positions = (m.start() for m in _QUOTED_OR_HASH.finditer(line) if m.group() == "#")
    hash_at = next(positions, None)
    if hash_at is None:
        return line
    is_inside_word = line[:hash_at].rstrip() == line[:hash_at] != ""
    if is_inside_word:
        word = line[:hash_at].rsplit(maxsplit=1)[-1] + line[hash_at:].split(maxsplit=1)[0]
        raise UsageError(
            f"In {word} the # looks like a comment: quote the word, or put a space before the #."
        )
    return line[:hash_at]


def _words(line: str) -> tuple[list[str], list[str]]:
    """Split a line as a shell does; words after `--` are the program's arguments."""
    try:
        words = shlex.split(_without_comment(line))
    except ValueError as wrong:
        raise UsageError(f"The line cannot be read: {str(wrong).lower()}.") from None
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def _parse(magic: Any, line: str) -> Namespace:  # noqa: ANN401 - IPython hangs `parser` on the function
    """Parse the line of a magic without a program."""
    words, _args = _words(line)
    parser: MagicArgumentParser = magic.parser
    options: Namespace = parser.parse_args(words)
    return options


SUBMIT = click.Command(
    "%runai_submit",
    params=[
        click.Argument(["script"], required=False, metavar="[SCRIPT] [-- ARGUMENTS]..."),
        click.Option(["--name"], metavar="NAME", help=option_of("name").help),
        click.Option(
            ["--set", "settings"],
            multiple=True,
            metavar="NAME=VALUE",
            help="Set a parameter of a notebook (study.ipynb).",
        ),
        *request_options(),
        click.Option(["--dry-run"], is_flag=True, help="Print the result without submitting."),
        click.Option(["--wait"], is_flag=True, help="Wait for the end."),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
"""The options of `runai submit`, and a notebook's `--set`, parsed without a process."""


def _parse_options(command: click.Command, line: str) -> dict[str, Any] | None:
    """Parse a line with a command's options; None: it asked for their help, which is printed."""
    words, args = _words(line)
    try:
        with command.make_context(command.name, words) as context:
            return {**context.params, "args": args}
    except click.UsageError as wrong:
        raise UsageError(wrong.format_message()) from None
    except click.exceptions.Exit:
        return None


def _with_help(command: click.Command) -> Callable[[F], F]:
    """Add a command's help to a magic's docstring, which `%magic?` shows."""

    def documented(magic: F) -> F:
        with command.make_context(command.name, [], resilient_parsing=True) as context:
            magic.__doc__ = f"{magic.__doc__}\n\n{command.get_help(context)}"
        return magic

    return documented


@magics_class
class RunaiMagics(Magics):
    """Submit, list, read, pause, resume and stop workloads from a notebook."""

    @_with_usage_errors
    @_with_help(SUBMIT)
    @line_cell_magic
    def runai_submit(self, line: str, cell: str | None = None) -> Job | Jobs | text.Text | None:
        """Submit a script, a notebook or the rest of the cell; after -- come its arguments."""
        if python := _PYTHON_FIRST.match(line):
            raise UsageError(f"Leave out {python[1]}: a script runs with this kernel's Python.")
        options = _parse_options(SUBMIT, line)
        if options is None:
            return None
        script, args = options["script"], options["args"]
        if options["settings"] and (cell is not None or not is_notebook(script or "")):
            raise UsageError("--set is for notebooks; a program's arguments stand behind --.")
        args = [*(f"--set={setting}" for setting in options["settings"]), *args]
        fields = request_values(options)
        workdir, env = fields.pop("workdir", None), fields.pop("env")
        if options["name"] is not None:
            fields["name"] = options["name"]
        if cell is None:
            if script is None:
                raise UsageError("Name a script: %runai_submit train.py --gpus 1")
            command = program_command(script, args)
        elif script is not None:
            raise UsageError(
                f"The cell is the program, so {script} has no place."
                " Put arguments of the program behind --."
            )
        else:
            command = cell_command(cell, args)
            env = with_module_path(env, workdir)
        request = submit_request(command, fields, env=env, workdir=workdir, source=cell or "")
        if options["dry_run"]:
            return dry_run(request)
        jobs = send(request)
        return _wait(jobs) if options["wait"] else jobs

    @_with_usage_errors
    @cell_magic
    def gpu(self, line: str, cell: str) -> None:
        """Run the cell; print its GPU utilization, peak GPU memory and time."""
        if _without_comment(line).strip():
            raise UsageError("%%gpu takes no arguments: the cell below it is measured.")
        platform, session, shell = link(), own_session(), self.shell
        assert shell is not None
        if _has_top_level_await(shell, cell):
            raise UsageError("Cells that await at the top cannot be measured: leave %%gpu out.")
        with CellMeter(lambda: platform.client.workload(session)) as meter:
            result = shell.run_cell(cell, store_history=False)
        print(meter.report())  # noqa: T201 - the magic's result
        if not result.success:
            raise CellFailed

    @_with_usage_errors
    @line_magic
    def runai_status(self, line: str) -> Panel:
        """Show this session's GPU in one line: share, utilization, memory and idle action."""
        if _without_comment(line).strip():
            raise UsageError("%runai_status takes no arguments.")
        return status()

    @_with_usage_errors
    @magic_arguments()
    @argument("-p", "--project", help="only this project")
    @argument("-a", "--all", action="store_true", help="other users' workloads too")
    @line_magic
    def runai_list(self, line: str) -> text.Text:
        """List your workloads."""
        options = _parse(self.runai_list, line)
        platform = link()
        user = None if options.all else platform.whoami().name
        page = platform.client.workload_page(WorkloadFilter(options.project, user))
        return text.workload_table(page.items, datetime.now(UTC), sum(page.counts.values()))

    @_with_usage_errors
    @magic_arguments()
    @argument("name", help="name of the workload, or project/name")
    @argument("-f", "--follow", action="store_true", help="continue until it is finished")
    @argument("--tail", type=int, help="only the last N lines")
    @argument("--worker", type=int, help="only this worker")
    @line_magic
    def runai_logs(self, line: str) -> None:
        """Print the output of a workload."""
        options = _parse(self.runai_logs, line)
        job = Job.find(options.name)
        job.logs(follow=options.follow, tail=options.tail, worker=options.worker)

    @_with_usage_errors
    @magic_arguments()
    @argument("name", help="name of the workload, or project/name")
    @line_magic
    def runai_describe(self, line: str) -> text.Text:
        """Show everything about a workload."""
        return Job.find(_parse(self.runai_describe, line).name).describe()

    @_with_usage_errors
    @magic_arguments()
    @argument("name", nargs="+", help="names of workloads, or project/name")
    @line_magic
    def runai_suspend(self, line: str) -> Jobs:
        """Suspend jobs: release their GPUs and remove them from the queue."""
        return _find_jobs(_parse(self.runai_suspend, line)).suspend()

    @_with_usage_errors
    @magic_arguments()
    @argument("name", nargs="+", help="names of workloads, or project/name")
    @line_magic
    def runai_resume(self, line: str) -> Jobs:
        """Put suspended jobs back into their places in the queue."""
        return _find_jobs(_parse(self.runai_resume, line)).resume()

    @_with_usage_errors
    @magic_arguments()
    @argument("name", nargs="+", help="names of workloads, or project/name")
    @line_magic
    def runai_delete(self, line: str) -> text.Text:
        """Stop workloads and remove them from the lists."""
        platform = link()
        views = platform.find_all(_parse(self.runai_delete, line).name)
        for view in views:
            platform.client.delete(view)
        lines = [
            f"{v.id}{f' ({jobs:,} jobs)' if (jobs := sum(v.states.values())) else ''}"
            f" is {'stopping' if v.allocated else 'deleted'}."
            for v in views
        ]
        return text.Text("\n".join(lines))


def _has_top_level_await(shell: InteractiveShell, cell: str) -> bool:
    """Return True if a cell awaits outside of functions: it runs in the event loop, as we do."""
    try:
        transformed = shell.transform_cell(cell)
    except SyntaxError:
        return False  # running it shows the error
    return bool(shell.should_run_async(cell, transformed_cell=transformed))


def _find_jobs(options: Namespace) -> Jobs:
    """Resolve all names first, so that a wrong one changes nothing."""
    return Jobs(Job(view.id, uid=view.uid) for view in link().find_all(options.name))


def _wait(jobs: Job | Jobs) -> Job | Jobs:
    """Wait for jobs; Ctrl-C ends the waiting only."""
    try:
        return jobs.wait()
    except KeyboardInterrupt:
        print("Stopped waiting; the job goes on. %runai_list shows it.")  # noqa: T201
        return jobs
