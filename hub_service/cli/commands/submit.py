"""`runai submit`: build the request from the command line, send it, print the first decision.

The command checks only facts of this computer (the script exists, the variable is set); the
service checks the rest.
"""

import os
from pathlib import Path
from typing import Any

import click

from runai.hub_service.cli.framework.error_reporting import output_option
from runai.hub_service.cli.framework.program_argument import (
    ProgramCommand,
    absolute_workdir,
    check_program,
)
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, waiting
from runai.hub_service.client import Client, texts
from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.client.notebook_program import program_of
from runai.hub_service.client.request_options import request_options, request_values
from runai.hub_service.processes.accounts.submission_environment import (
    ENVIRONMENTS,
    environment_note,
)
from runai.hub_service.processes.accounts.umask import umask_note
from runai.hub_service.processes.program_files import named_files, read_code
from runai.hub_service.processes.user_environment import UserEnvironment
from runai.hub_service.wire.schemas import SubmitReply, WorkloadView
from runai.hub_service.wire.validation import checked
from runai.hub_service.wire.workload_request import SubmitRequest

MAX_LISTED_JOBS = 10
"""Jobs of an array that are printed one by one."""


@click.command(
    cls=ProgramCommand,
    # A terminal alone completes projects and folders.
    params=request_options(types={"project": PROJECT_NAME, "workdir": click.Path(file_okay=False)}),
)
@click.argument("name", required=False)
@click.option("--name", "original_name", hidden=True)
@click.option("--dry-run", is_flag=True, help="Print the result without submitting.")
@click.option("--wait", is_flag=True, help="Wait for the end, and exit with the program's code.")
@output_option("table", "json")
def submit(
    name: str | None,
    original_name: str | None,
    dry_run: bool,
    wait: bool,
    output: str,
    program: tuple[str, ...],
    **options: Any,
) -> None:
    """Submit a job, or with --interactive a session.

    \b
    runai submit exp1 --gpus 0.5 -- python train.py
    runai submit -g 1 -p vision -- python train.py --epochs 3    (with a generated name)
    runai submit sweep -g 0.25 --array 8 -- python sweep.py
    runai submit big --elastic --workers 8 -- python train.py    (on 1 to 8 GPUs)
    runai submit exp1 -g 1 -- study.ipynb --set rate=0.1         (a notebook)

    It returns at once; the job starts when its turn in the project's queue comes.
    Jobs beyond the quota may be paused (SIGTERM, then the grace period) and start again with
    RUNAI_RESUMED=1 and the same RUNAI_CHECKPOINT_DIR.
    """  # noqa: D301 - \b is click's mark of a block
    if name is not None and original_name is not None:
        raise click.UsageError(f"NAME and --name are both given: {name} and {original_name}.")
    fields = request_values(options)
    folder = absolute_workdir(options["workdir"])
    is_known = "image" not in fields  # an image has programs of its own
    keeps_python = not is_known or fields.get("no_environment") or "PATH" in fields["env"]
    python = "python" if keeps_python else _python_of_notebook()
    command = program_of(program, folder=folder if is_known else None, python=python)
    if is_known:
        check_program(command, folder, fields["env"].get("PATH"))
        fields |= {"code": read_code(str(folder), named_files(command)), "umask": umask_note()}
        fields |= {} if fields.get("no_environment") else {"environment": environment_note()}
    fields |= {"command": command, "workdir": str(folder)}
    if name or original_name:
        fields["name"] = name or original_name
    request = checked(SubmitRequest, fields)
    with Client.discover() as client:
        reply = client.submit(request, dry_run=dry_run)
        if output in render.DATA:
            render.show_data(reply, output)
        else:
            _print_result(reply)
        if wait and not dry_run:
            names = [reply.array] if reply.array else reply.ids()
            exit_code = waiting.wait_for(
                client,
                [WorkloadIdentity(name, reply.workloads[0].uid) for name in names],
                quiet=output in render.DATA,
            )
            click.get_current_context().exit(exit_code)


def _python_of_notebook() -> str:
    """Return the Python for a notebook: another active environment may lack what runs it."""
    own = UserEnvironment(Path(os.environ.get("HOME", "/")))
    active = {os.environ.get(name) for name in ENVIRONMENTS} - {None, "", str(own.root)}
    return str(own.python) if active and own.python.is_file() else "python"


def _print_result(reply: SubmitReply) -> None:
    """Print what was submitted, or would be; of a large array one line."""
    if reply.count > MAX_LISTED_JOBS and not reply.dry_run:
        name = f"{reply.array}-[0-{reply.count - 1}]"
        click.echo(f"array {name} submitted: {reply.count:,} jobs")
        listed: list[WorkloadView] = []
    else:
        listed = reply.workloads[:MAX_LISTED_JOBS]
    for w in listed:
        submitted = f"submitted: {w.state}"
        outcome = texts.dry_run_outcome(w, reply.unchecked) if reply.dry_run else submitted
        click.echo(f"{w.kind} {w.id} {outcome}")
    if reply.dry_run and reply.count > MAX_LISTED_JOBS:
        click.echo(f"and so on: {reply.count:,} jobs")
    for note in reply.notes:
        click.echo(note)
