"""The magics `%runai_submit`, `%%runai_submit`, `%runai_list`, …: the command line in a notebook.

They take the options of `runai submit` and return at once, jobs as live views. Errors are shown as
one sentence without a traceback.
"""

import re
import shlex
from argparse import Namespace
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.wire.errors import RunaiError
from runai.widgets import text
from runai.widgets.gpu_cell import CellMeter
from runai.widgets.jobs import Job, Jobs, dry_run, send
from runai.widgets.link import link
from runai.widgets.panel import Panel, own_session, status
from runai.widgets.request import (
    cell_command,
    environment,
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


def _parse(magic: Any, line: str) -> Namespace:  # noqa: ANN401 - IPython hangs `parser` on the function
    """Parse a line split as by a shell; words after `--` are the program's arguments."""
    try:
        words = shlex.split(_without_comment(line))
    except ValueError as wrong:
        raise UsageError(f"The line cannot be read: {str(wrong).lower()}.") from None
    own_words, args = words, []
    if "--" in words:
        cut = words.index("--")
        own_words, args = words[:cut], words[cut + 1 :]
    parser: MagicArgumentParser = magic.parser
    options = parser.parse_args(own_words)
    for name, value in vars(options).items():
        # argparse drops the value of `-e--` and `--name=--`, and stores an empty list.
        if (value == [] and parser.get_default(name) != []) or (
            isinstance(value, list) and [] in value
        ):
            raise UsageError(f"The value of {name} cannot be --, behind which the program's begin.")
    options.args = args
    return options


@magics_class
class RunaiMagics(Magics):
    """Submit, list, read, pause, resume and stop workloads from a notebook."""

    @_with_usage_errors
    @magic_arguments()
    @argument(
        "script", nargs="?", help="script or program (in a cell magic the cell is the program)"
    )
    @argument("--name", help="name of the job (default: the next free job-N)")
    @argument("-g", "--gpus", help="GPUs of each worker, a fraction or whole (default: none)")
    @argument("--gpu-memory", help="GPU memory instead of GPUs, such as 4G")
    @argument("--gpu-type", help="only GPUs of these types, such as H100,A100: the first preferred")
    @argument("--cpu", help="CPUs of each worker, such as 0.5 or 4 (default: 1 without a GPU)")
    @argument("--memory", help="memory of each worker, such as 16G (default: 1G without a GPU)")
    @argument("-p", "--project", help="project whose quota it uses (default: the session's)")
    @argument("--priority", help="low, normal or high (default: normal)")
    @argument("--workers", type=int, default=1, help="processes that start together")
    @argument(
        "--elastic",
        action="store_true",
        help="add idle GPUs while it runs, and return them on demand",
    )
    @argument("--min-workers", type=int, help="workers to start with (default: all; elastic: 1)")
    @argument(
        "--guaranteed-workers",
        type=int,
        help="elastic: workers within the quota, safe from other projects",
    )
    @argument(
        "--saves", action="store_true", help="the job saves its work at SIGTERM, so it may move"
    )
    @argument("--array", type=int, help="number of jobs, numbered from 0 by RUNAI_ARRAY_INDEX")
    @argument(
        "-e",
        "--env",
        action="append",
        default=[],
        help="environment variable NAME=VALUE, or NAME for the notebook's own; repeatable",
    )
    @argument("--workdir", help="directory to run in (default: the notebook's)")
    @argument(
        "--interactive",
        action="store_true",
        help="a session, which uses the build quota and is never preempted",
    )
    @argument("--preemptible", action="store_true", default=None, help="let a session be preempted")
    @argument("--backoff-limit", type=int, default=0, help="retries after a failure")
    @argument(
        "--grace", default="30s", help="time between SIGTERM and SIGKILL in a pause, such as 2m"
    )
    @argument("--expected-runtime", help="estimate of its run time, such as 2h")
    @argument("--time", help="running time after which it stops for good, such as 8h")
    @argument("--image", help="container image on Kubernetes (default: the notebook's)")
    @argument("--dry-run", action="store_true", help="print the result without submitting")
    @argument("--wait", action="store_true", help="wait for the end")
    @line_cell_magic
    def runai_submit(self, line: str, cell: str | None = None) -> Job | Jobs | text.Text:
        """Submit a script, or the rest of the cell, as a job; after -- come its arguments."""
        if python := _PYTHON_FIRST.match(line):
            raise UsageError(f"Leave out {python[1]}: a script runs with this kernel's Python.")
        options = _parse(self.runai_submit, line)
        env = environment(options.env)
        if cell is None:
            if options.script is None:
                raise UsageError("Name a script: %runai_submit train.py --gpus 1")
            command = program_command(options.script, options.args)
        elif options.script is not None:
            raise UsageError(
                f"The cell is the program, so {options.script} has no place."
                " Put arguments of the program behind --."
            )
        else:
            command = cell_command(cell, options.args)
        request = submit_request(
            command,
            gpus=options.gpus,
            gpu_memory=options.gpu_memory,
            cpu=options.cpu,
            memory=options.memory,
            priority=options.priority,
            env=env if cell is None else with_module_path(env, options.workdir),
            workdir=options.workdir,
            interactive=options.interactive,
            source=cell or "",
            name=options.name,
            project=options.project,
            workers=options.workers,
            elastic=options.elastic,
            min_workers=options.min_workers,
            guaranteed_workers=options.guaranteed_workers,
            saves=options.saves,
            array=options.array,
            preemptible=options.preemptible,
            backoff_limit=options.backoff_limit,
            grace_seconds=options.grace,
            expected_runtime=options.expected_runtime,
            max_runtime=options.time,
            image=options.image,
            gpu_type=options.gpu_type,
        )
        if options.dry_run:
            return dry_run(request)
        jobs = send(request)
        return _wait(jobs) if options.wait else jobs

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
        return text.workload_table(page.items, sum(page.counts.values()))

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
