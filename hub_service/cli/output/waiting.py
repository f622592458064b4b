"""`--wait`: show what a workload does until it is finished, then give its exit code.

A live line on a terminal, one plain line for each change elsewhere. Ctrl-C ends the waiting,
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
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import WorkloadView

FINISHED: Final = frozenset({"succeeded", "failed", "ended"})
_PATIENCE_S: Final = 600.0
"""So long a service may be away, being restarted or upgraded."""
_SIGNALLED: Final = 128
"""A shell reports signal N as 128 + N."""


def exit_code_of(workload: WorkloadView) -> int:
    """Return what a shell would say of the program's end; 1 for a failure without a code."""
    if workload.exit_code is None:
        return int(workload.state == "failed")
    return workload.exit_code if workload.exit_code >= 0 else _SIGNALLED - workload.exit_code


def wait_for(client: Client, workloads: Sequence[str], *, quiet: bool = False) -> int:
    """Wait until all of these ids are finished; return the first exit code that is not 0.

    Progress goes to standard error, so that standard output stays the command's answer.
    """
    ended: list[int] = []
    try:
        with _progress(quiet=quiet) as tell:
            for workload in workloads:
                for line in _until_finished(client, workload, ended):
                    tell(line if len(workloads) == 1 else f"[{len(ended)}/{len(workloads)}] {line}")
    except KeyboardInterrupt:
        names = " ".join(workloads[len(ended) :])
        click.echo(
            f"\nNot waiting any longer; still there: {names}. Stop with `runai delete {names}`.",
            err=True,
        )
        return INTERRUPTED
    return next((code for code in ended if code), 0)


def _until_finished(client: Client, name: str, ended: list[int]) -> Iterator[str]:
    """Yield a line for each change, and add the exit code at the end."""
    workload: WorkloadView = client.workload(name)
    said = ""
    away_since: float | None = None
    while True:
        if workload.state in FINISHED:
            ended.append(exit_code_of(workload))
        line = _line(workload)
        if line != said:
            yield line
            said = line
        if workload.state in FINISHED:
            return
        try:
            workload = client.wait(workload.id, workload.version)
            away_since = None
        except Unavailable as away:
            # The job goes on without the service, and the client has already tried for seconds.
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > _PATIENCE_S:
                raise
            said = f"{workload.id} {workload.state}: {away.message} Still waiting."
            yield said


def _line(workload: WorkloadView) -> str:
    why = render.reason(workload.reason)
    if workload.state == "running":
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
    """The present line with a spinner, below the lines of the past."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status = Status("", console=self._console)
        self._line = ""

    def __enter__(self) -> Callable[[str], None]:
        self._status.start()
        return self._tell

    def __exit__(self, *_exc: object) -> None:
        self._status.stop()
        self._console.print(self._line)

    def _tell(self, line: str) -> None:
        if self._line:
            self._console.print(self._line)
        self._line = line
        self._status.update(Text(line))
