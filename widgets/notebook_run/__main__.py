"""Command line of the runner: a notebook, and `--set NAME=VALUE` as often as wanted."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

from runai.hub_service.client.notebook_program import DRIVE, settings_of
from runai.hub_service.wire.errors import InvalidRequest
from runai.widgets.notebook_run.run import NotebookRun


def main(arguments: Sequence[str]) -> int:
    """Run a notebook and return the exit code."""
    # A pause before the kernel starts ends us at once, in the way of a pause.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except InvalidRequest as refused:
        print(refused, file=sys.stderr, flush=True)  # noqa: T201 - the job's log
        return 1


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        raise InvalidRequest("Name a notebook: python -m runai.widgets.notebook_run study.ipynb")
    _check_surroundings()
    path = Path(arguments[0].removeprefix(DRIVE)).absolute()
    run = NotebookRun.begin(path, settings_of(arguments[1:]))
    try:
        # The copy is there already: these imports take seconds on a busy machine.
        from runai.widgets.notebook_run.kernel_client import JobClient, kernel_of  # noqa: PLC0415

        kernel, remark = kernel_of(run.notebook)
        again = f"started again ({run.starts}): " if run.starts > 1 else ""
        run.say(f"{again}{path.name} runs as {run.copy.path.name}, kernel {kernel}{remark}")
        return asyncio.run(JobClient(run, kernel).execute_run())
    except SystemExit:  # a pause before the kernel starts
        run.unnoted_end = "paused"
        raise
    finally:
        if not run.is_ended:
            run.end(run.unnoted_end)


def _check_surroundings() -> None:
    """Check that this Python can run notebooks, and that this is the job's only process.

    Raises:
        InvalidRequest: it cannot, or other workers run the same notebook.
    """
    if missing := [name for name in ("nbclient", "nbformat") if find_spec(name) is None]:
        install = shlex.join([sys.executable, "-m", "pip", "install", *missing, "ipykernel"])
        raise InvalidRequest(
            f"A notebook runs by {' and '.join(missing)}, which the job's Python lacks.",
            hint=f"Run {install}",
        )
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InvalidRequest(
            "A notebook runs in one worker.",
            hint="Leave out --workers, or export the notebook as a script.",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
