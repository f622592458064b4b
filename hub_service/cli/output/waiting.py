"""`wait` and `--wait`: progress of workloads until they finish, and their exit code.

It shows a live line on a terminal, elsewhere one plain line per change. Ctrl-C and the end of the
time end the waiting, never the workload.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Final

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from runai.hub_service.cli.framework.error_reporting import INTERRUPTED
from runai.hub_service.client import Client, texts
from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.client.calls import Identified
from runai.hub_service.wire.errors import Conflict, NotFound, Unavailable
from runai.hub_service.wire.schemas import FINISHED, WorkloadView

_PATIENCE_S: Final = 600.0
"""Maximum downtime of the service, for a restart or an upgrade."""
_SIGNALLED: Final = 128
"""A shell reports signal N as 128 + N."""
_TIMEOUT_EXIT_CODE: Final = 124
"""The exit code of coreutils' `timeout`."""
_POLL_S: Final = 30.0


class _WaitTimeoutError(Exception):
    """The time to wait is over before all workloads are finished."""


def exit_code_of(workload: WorkloadView) -> int:
    """Return the exit code as of a shell; 1 for a failure without a code."""
    if workload.exit_code is None:
        return int(workload.state in {"failed", "timed_out"})
    return workload.exit_code if workload.exit_code >= 0 else _SIGNALLED - workload.exit_code


def wait_for(
    client: Client,
    workloads: Sequence[Identified],
    *,
    timeout_s: float = inf,
    quiet: bool = False,
) -> int:
    """Wait until all workloads are finished; return the first exit code other than 0.

    It is 1 for a deleted one of several, and 124 after `timeout_s`. Progress goes to standard
    error: standard output has the command's result only.

    Raises:
        NotFound, Conflict: the only workload was deleted, and another one may have its name.
    """
    exit_codes: list[int] = []
    deadline = time.monotonic() + timeout_s
    try:
        with _progress_output(quiet=quiet) as show:
            for workload in workloads:
                try:
                    for line in _follow_until_finished(client, workload, exit_codes, deadline):
                        show(_numbered(line, exit_codes, workloads))
                except (NotFound, Conflict) as deleted:
                    if len(workloads) == 1:
                        raise
                    exit_codes.append(1)
                    show(_numbered(deleted.message, exit_codes, workloads))
    except KeyboardInterrupt:
        click.echo(err=True)  # ends the line of the terminal's ^C
        return _give_up("Interrupted", workloads[len(exit_codes) :], INTERRUPTED)
    except _WaitTimeoutError:
        return _give_up("The time is over", workloads[len(exit_codes) :], _TIMEOUT_EXIT_CODE)
    return next((code for code in exit_codes if code), 0)


def _numbered(line: str, exit_codes: Sequence[int], workloads: Sequence[Identified]) -> str:
    return line if len(workloads) == 1 else f"[{len(exit_codes)}/{len(workloads)}] {line}"


def _give_up(why: str, workloads: Sequence[Identified], code: int) -> int:
    """Print that nothing more is waited for; return the exit code."""
    names = " ".join(workload.id for workload in workloads)
    click.echo(
        f"{why}: not waiting any longer for {names}. Running jobs go on; `runai delete {names}`"
        " stops them.",
        err=True,
    )
    return code


def _follow_until_finished(
    client: Client, submitted: Identified, exit_codes: list[int], deadline: float
) -> Iterator[str]:
    """Yield a line for each change; append the exit code to `exit_codes` at the end.

    Raises:
        NotFound, Conflict: the workload was deleted, and another one may have its name.
        _WaitTimeoutError: it is not finished at the deadline.
    """
    workload: WorkloadView = _poll(client, submitted)
    last_line = ""
    down_since: float | None = None
    while True:
        if workload.state in FINISHED:
            exit_codes.append(exit_code_of(workload))
        line = _status_line(workload)
        if line != last_line:
            yield line
            last_line = line
        if workload.state in FINISHED:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise _WaitTimeoutError
        try:
            workload = _poll(client, workload, workload.version, min(left_s, _POLL_S))
            down_since = None
        except Unavailable as error:
            # The job continues without the service, and the client has retried for seconds.
            down_since = down_since or time.monotonic()
            if time.monotonic() - down_since > _PATIENCE_S:
                raise
            last_line = f"{workload.id} {workload.state}: {error.message} Still waiting."
            yield last_line


def _poll(
    client: Client, workload: Identified, changed_from: str = "", timeout_s: float = 0.0
) -> WorkloadView:
    try:
        return client.wait(workload, changed_from, timeout_s)
    except NotFound as error:
        raise NotFound(f"{workload.id} was deleted before it was seen to finish.") from error


def _status_line(workload: WorkloadView) -> str:
    """Format a workload's state, with the reason, devices or exit code."""
    why = texts.reason(workload.reason)
    if workload.states:
        why = counts_text(workload.states)
    elif workload.state == "running":
        why = f"on {texts.devices(workload)}" if workload.allocated else ""
    elif workload.state in FINISHED and workload.exit_code is not None:
        why = f"exit code {workload.exit_code}"
    if workload.state == "suspended":
        why += f"; waiting for `runai resume {workload.id}`"
    return f"{workload.id} {workload.state}" + (f": {why}" if why else "")


def _progress_output(*, quiet: bool) -> AbstractContextManager[Callable[[str], None]]:
    """Return the context that yields the function to show a line."""
    if quiet:
        return nullcontext(lambda _line: None)
    if sys.stderr.isatty():
        return _StatusLine()
    return nullcontext(lambda line: click.echo(line, err=True))


class _StatusLine:
    """The current line with a spinner, below the earlier lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status = Status("", console=self._console)
        self._line = ""

    def __enter__(self) -> Callable[[str], None]:
        self._status.start()
        return self._update

    def __exit__(self, *_exc: object) -> None:
        self._status.stop()
        self._console.print(self._line)

    def _update(self, line: str) -> None:
        if self._line:
            self._console.print(self._line)
        self._line = line
        self._status.update(Text(line))
