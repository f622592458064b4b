"""`--wait`: progress of workloads until they finish, and their exit code.

It shows a live line on a terminal, elsewhere one plain line per change. Ctrl-C ends the waiting,
never the workload.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from runai.hub_service.cli.framework.reporting import INTERRUPTED
from runai.hub_service.cli.output import render
from runai.hub_service.client import Client
from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.client.calls import Identified
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import WorkloadView

FINISHED: Final = frozenset({"succeeded", "failed", "ended", "timed_out"})
_PATIENCE_S: Final = 600.0
"""Maximum downtime of the service, for a restart or an upgrade."""
_SIGNALLED: Final = 128
"""A shell reports signal N as 128 + N."""


def exit_code_of(workload: WorkloadView) -> int:
    """Return the exit code as of a shell; 1 for a failure without a code."""
    if workload.exit_code is None:
        return int(workload.state in {"failed", "timed_out"})
    return workload.exit_code if workload.exit_code >= 0 else _SIGNALLED - workload.exit_code


def wait_for(client: Client, workloads: Sequence[Identified], *, quiet: bool = False) -> int:
    """Wait until all workloads are finished; return the first exit code other than 0.

    Progress goes to standard error: standard output has the command's result only.
    """
    ended: list[int] = []
    try:
        with _progress(quiet=quiet) as show:
            for workload in workloads:
                for line in _until_finished(client, workload, ended):
                    show(line if len(workloads) == 1 else f"[{len(ended)}/{len(workloads)}] {line}")
    except KeyboardInterrupt:
        names = " ".join(workload.id for workload in workloads[len(ended) :])
        click.echo(
            f"\nNot waiting any longer; still there: {names}. Stop with `runai delete {names}`.",
            err=True,
        )
        return INTERRUPTED
    return next((code for code in ended if code), 0)


def _until_finished(client: Client, submitted: Identified, ended: list[int]) -> Iterator[str]:
    """Yield a line for each change; append the exit code to `ended` at the end."""
    workload: WorkloadView = client.workload(submitted)
    last_line = ""
    down_since: float | None = None
    while True:
        if workload.state in FINISHED:
            ended.append(exit_code_of(workload))
        line = _line(workload)
        if line != last_line:
            yield line
            last_line = line
        if workload.state in FINISHED:
            return
        try:
            workload = client.wait(workload, workload.version)
            down_since = None
        except Unavailable as error:
            # The job continues without the service, and the client has retried for seconds.
            down_since = down_since or time.monotonic()
            if time.monotonic() - down_since > _PATIENCE_S:
                raise
            last_line = f"{workload.id} {workload.state}: {error.message} Still waiting."
            yield last_line


def _line(workload: WorkloadView) -> str:
    why = render.reason(workload.reason)
    if workload.states:
        why = counts_text(workload.states)
    elif workload.state == "running":
        why = f"on {render.devices(workload)}" if workload.allocated else ""
    elif workload.state in FINISHED and workload.exit_code is not None:
        why = f"exit code {workload.exit_code}"
    return f"{workload.id} {workload.state}" + (f": {why}" if why else "")


def _progress(*, quiet: bool) -> AbstractContextManager[Callable[[str], None]]:
    if quiet:
        return nullcontext(lambda _line: None)
    if sys.stderr.isatty():
        return _Live()
    return nullcontext(lambda line: click.echo(line, err=True))


class _Live:
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
