"""`runai logs` and `runai exec`: what a workload wrote, and a program beside it on its GPUs.

`exec` replaces this process, so that signals, the terminal and the exit code are the program's own;
`-i` and `-t`, known from kubectl, are true anyway.
"""

import os
from pathlib import Path

import click

from runai.hub_service.api.schemas import WorkloadView
from runai.hub_service.cli import render
from runai.hub_service.cli.naming import WORKLOAD_NAME, find, in_project
from runai.hub_service.cli.program import CommandAfterDashes
from runai.hub_service.cli.reporting import Command
from runai.hub_service.client import Client
from runai.hub_service.errors import InvalidRequest

__all__ = ["exec_", "logs"]


@click.command(cls=Command)
@click.argument("name", type=WORKLOAD_NAME)
@click.option("-f", "--follow", is_flag=True, help="Go on until the workload is finished.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last so many lines."
)
@click.option("--worker", type=click.IntRange(min=0), metavar="N", help="Only this worker's.")
@in_project
def logs(
    name: str, follow: bool, tail: int | None, worker: int | None, project: str | None
) -> None:
    """Print what a workload wrote.

    Over all its attempts; a pause does not end `-f`. Of several workers each line begins
    with the worker's number.
    """
    with Client.discover() as client:
        workload = find(client, name, project)
        several = len(workload.workers) > 1 and worker is None
        silent = True
        for line in client.logs(workload.id, worker=worker, tail=tail, follow=follow):
            click.echo(f"[{line.worker}] {line.text}" if several else line.text)
            silent = False
    if silent and tail != 0:
        why = render.reason(workload.reason)
        state = f"{workload.state}: {why}" if why else workload.state
        click.echo(f"{workload.id} has written nothing ({state}).", err=True)


@click.command(name="exec", cls=CommandAfterDashes)
@click.argument("name", type=WORKLOAD_NAME)
@click.option(
    "--worker", type=click.IntRange(min=0), metavar="N", default=0, help="With its environment."
)
@click.option("-i", "--stdin", is_flag=True, hidden=True, expose_value=False)
@click.option("-t", "--tty", is_flag=True, hidden=True, expose_value=False)
@in_project
def exec_(name: str, worker: int, project: str | None, program: tuple[str, ...]) -> None:
    """Run a program on the GPUs of a running workload.

    Here, in the workload's directory and with its environment, as in
    `runai exec exp1 -- nvidia-smi`. It shares the allocation; it adds none.
    """
    with Client.discover() as client:
        workload = find(client, name, project)
        handed = client.environment(workload.id, worker=worker)
    if handed.workdir:
        _enter(Path(handed.workdir), workload)
    environment = os.environ | handed.environment
    try:
        os.execvpe(program[0], program, environment)  # noqa: S606 - what the user typed
    except OSError as failed:
        raise InvalidRequest(
            f"'{program[0]}' cannot be run: {(failed.strerror or 'unknown reason').lower()}.",
            hint="It is looked up here, in the workload's PATH.",
        ) from failed


def _enter(folder: Path, workload: WorkloadView) -> None:
    try:
        os.chdir(folder)
    except OSError as failed:
        raise InvalidRequest(
            f"The directory of {workload.id}, {folder}, cannot be entered from here.",
            hint="Run this on the machine of the workload, as its user.",
        ) from failed
