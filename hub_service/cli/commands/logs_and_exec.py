"""`runai logs` and `runai exec`: a workload's output, and a program on its GPUs.

On this machine `exec` replaces this process, so that signals, the terminal and the exit code are
the program's own; `-i` and `-t`, known from kubectl, always apply. On Kubernetes the program runs
in the pod: its whole input is sent first, its output streams back.
"""

import os
import shlex
import shutil
import sys
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from runai.hub_service.cli.framework.error_reporting import Command
from runai.hub_service.cli.framework.param_types import LINES, WORKER_INDEX
from runai.hub_service.cli.framework.program_argument import ProgramCommand
from runai.hub_service.cli.framework.workload_names import WORKLOAD_NAME, find, in_project
from runai.hub_service.client import Client, texts
from runai.hub_service.client.log_lines import LogPrinter
from runai.hub_service.processes.shell_environment import RENDEZVOUS, without_cpus
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound, Unavailable
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.program_schemas import MOST_INPUT_BYTES, ExecRequest
from runai.hub_service.wire.schemas import WorkloadView


@click.command(cls=Command)
@click.argument("name", type=WORKLOAD_NAME)
@click.option("-f", "--follow", is_flag=True, help="Continue until the workload is finished.")
@click.option(
    "--tail",
    type=LINES,
    metavar="N",
    help="Print only the last N lines.",
)
@click.option(
    "--worker",
    type=WORKER_INDEX,
    metavar="N",
    help="Print only this worker's output.",
)
@in_project
def logs(
    name: str, follow: bool, tail: int | None, worker: int | None, project: str | None
) -> None:
    """Print the output of a workload.

    It prints all attempts; a pause does not end `-f`, which shows unfinished lines too. With
    several workers each line begins with the worker's number. A line "… are not kept …" counts
    output that is missing there.

    \b
    runai logs exp1 -f
    runai logs gang --worker 1 --tail 20
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        workload = find(client, name, project)
        several = len(workload.workers) > 1 and worker is None
        terminal = sys.stdout.isatty()
        printer = LogPrinter(
            partial(click.echo, nl=False, color=True),
            several=several,
            terminal=shutil.get_terminal_size if terminal else None,
        )
        parts = follow and printer.parts
        silent = True
        with closing(printer):
            for line in client.logs(workload, worker=worker, tail=tail, follow=follow, parts=parts):
                printer.print(line)
                silent = False
        if silent and follow:
            workload = _state_after_log(client, workload)
    if silent and tail != 0:
        why = texts.reason(workload.reason)
        state = f"{workload.state}: {why}" if why else workload.state
        click.echo(f"{workload.id} has written nothing ({state}).", err=True)


def _state_after_log(client: Client, workload: WorkloadView) -> WorkloadView:
    """Return a workload as it is after its log was followed.

    Raises:
        NotFound: it was deleted.
    """
    try:
        return client.workload(workload)
    except NotFound as error:
        raise NotFound(
            f"{workload.id} was deleted before it wrote anything.", hint=error.hint
        ) from error


@click.command(name="exec", cls=ProgramCommand)
@click.argument("name", type=WORKLOAD_NAME)
@click.option(
    "--worker",
    type=WORKER_INDEX,
    metavar="N",
    default=0,
    help="Use the environment of this worker.",
)
@click.option(
    "-i",
    "--stdin",
    is_flag=True,
    help="Pass standard input on (needed only on Kubernetes).",
)
@click.option("-t", "--tty", is_flag=True, hidden=True)
@in_project
@click.pass_context
def exec_(
    context: click.Context,
    name: str,
    worker: int,
    stdin: bool,
    tty: bool,
    project: str | None,
    program: tuple[str, ...],
) -> None:
    """Run a program on the GPUs of a running workload.

    It has the workload's environment and directory, and shares its GPUs. A worker's rank and
    rendezvous are left out: it does not join the training. It runs here on one machine, and in
    the pod on Kubernetes.

    \b
    runai exec exp1 -- nvidia-smi
    runai exec exp1 -it -- bash
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        workload = find(client, name, project)
        try:
            job_environment = client.environment(workload, worker=worker)
        except Conflict as refused:
            if refused.code != "is_a_pod":
                raise
            if tty:
                raise _no_terminal(refused.hint, program) from refused
            request = ExecRequest(command=list(program), stdin=_read_stdin(stdin=stdin))
            context.exit(_run_in_pod(client, workload, request, worker))
    if job_environment.workdir:
        _change_directory(Path(job_environment.workdir), workload)
    variables = {n: v for n, v in job_environment.environment.items() if n not in RENDEZVOUS}
    environment = without_cpus(os.environ) | variables
    if job_environment.umask:
        os.umask(int(job_environment.umask, 8))
    try:
        os.execvpe(program[0], program, environment)  # noqa: S606 - what the user typed
    except OSError as failed:
        raise InvalidRequest(
            f"'{program[0]}' cannot be run: {(failed.strerror or 'unknown reason').lower()}.",
            hint="It is looked up here, in the workload's PATH.",
        ) from failed


def _no_terminal(hint: str, program: Sequence[str]) -> InvalidRequest:
    """Return the error for `-t`, with the alternative command in its hint."""
    return InvalidRequest(
        "A program in a pod gets no terminal from here.",
        hint=f"Leave -t out. {hint.replace('PROGRAM', shlex.join(program))}",
        code="no_terminal",
    )


def _read_stdin(*, stdin: bool) -> bytes:
    """Return the whole standard input for a program in a pod, in base 64."""
    content = sys.stdin.buffer.read(MOST_INPUT_BYTES + 1) if stdin else b""
    if len(content) > MOST_INPUT_BYTES:
        raise InvalidRequest(
            f"More than {MOST_INPUT_BYTES >> 20} MiB cannot be handed on.",
            hint="Put it into a file that the workload can read.",
            code="too_large",
        )
    return b64encode(content)


def _run_in_pod(client: Client, workload: WorkloadView, request: ExecRequest, worker: int) -> int:
    """Stream a program's output to this terminal; return its exit code."""
    outputs = (_ByteOutput(sys.stdout), _ByteOutput(sys.stderr))
    for piece in client.execute(workload, request, worker):
        if piece.exit_code is not None:
            if piece.why:
                click.echo(f"'{request.command[0]}' cannot be run: {piece.why}", err=True)
            return piece.exit_code
        for output, data in zip(outputs, (piece.stdout, piece.stderr), strict=True):
            output.show(data)
    raise Unavailable(
        f"The connection to the program in {workload.id} broke.",
        hint="It may still run: look by runai exec.",
        code="broken_off",
    )


class _ByteOutput:
    """Output of raw bytes to a pipe, or without control sequences to a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        # A multi-byte character may be split between two chunks.
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def show(self, data: bytes) -> None:
        if self._out.isatty():
            lines = self._decoder.decode(data).split("\n")
            self._out.write("\n".join(map(for_terminal, lines)))
        else:
            self._out.buffer.write(data)
        self._out.flush()


def _change_directory(folder: Path, workload: WorkloadView) -> None:
    try:
        os.chdir(folder)
    except OSError as failed:
        raise InvalidRequest(
            f"The directory of {workload.id}, {folder}, cannot be entered from here.",
            hint="Run this on the machine of the workload, as its user.",
        ) from failed
