"""`runai submit`: build the request from the command line, send it, print the first decision.

The command checks only facts of this computer (the script exists, the variable is set); the
service checks the rest.
"""

from decimal import Decimal
from typing import Any

import click

from runai.hub_service.cli.framework.error_reporting import output_option
from runai.hub_service.cli.framework.param_types import (
    CPUS,
    DURATION,
    ENV,
    GPUS,
    GRACE,
    MEMORY,
    PRIORITY,
    WORKERS,
    EnvPair,
    submit_request,
)
from runai.hub_service.cli.framework.program_argument import (
    ProgramCommand,
    absolute_workdir,
    check_program,
)
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, waiting
from runai.hub_service.client import Client
from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.processes.accounts.umask import umask_note
from runai.hub_service.processes.program_files import named_files, read_code
from runai.hub_service.wire.schemas import SubmitReply, WorkloadView

MAX_LISTED_JOBS = 10
"""Jobs of an array that are printed one by one."""


class _RenamedOption(click.Option):
    """An option with its name in the original `runai` beside ours; the help leaves that out."""

    def __init__(self, *names: Any, original: str, **settings: Any) -> None:
        """Take `original` as one more name."""
        super().__init__(*names, **settings)
        self.original = original

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Teach the parser all names."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        parser.add_option(self, [self.original], dest=self.name, action=action, nargs=1)


@click.command(cls=ProgramCommand)
@click.argument("name", required=False)
@click.option("--name", "original_name", hidden=True)
@click.option(
    "-g",
    "--gpus",
    cls=_RenamedOption,
    original="--gpu",
    type=GPUS,
    help="Request GPUs for each worker (0.5, 1, 4). Default: none.",
)
@click.option(
    "--gpu-memory",
    type=MEMORY,
    help="Request memory of one GPU (4G) instead of --gpus.",
)
@click.option(
    "--gpu-type",
    metavar="NAME,...",
    help="Run only on GPUs of these types (words of a type's name, such as A100), the first"
    " preferred. Default: any.",
)
@click.option(
    "--cpu",
    type=CPUS,
    help="Request CPUs for each worker (0.5, 4). Default: 1 without a GPU. Least: 0.1 without a"
    " whole GPU.",
)
@click.option(
    "--memory",
    type=MEMORY,
    help="Request main memory for each worker (16G). Default: 1G without a GPU.",
)
@click.option(
    "-p",
    "--project",
    type=PROJECT_NAME,
    help="Use the quota of this project. Default: the session's, the one of `runai project use`,"
    " or your only one.",
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Start a session, which uses the build quota and is never preempted.",
)
@click.option(
    "--preemptible",
    is_flag=True,
    help="Let a session be preempted (with --interactive).",
)
@click.option(
    "--workers",
    type=WORKERS,
    metavar="N",
    default=1,
    show_default=True,
    help="Start this many processes together, each with its --gpus.",
)
@click.option(
    "--elastic",
    is_flag=True,
    help="Add idle GPUs while the job runs, and return them on demand: up to all of a node for one"
    " process with --gpus, or one GPU for each of the --workers.",
)
@click.option(
    "--min-workers",
    type=WORKERS,
    metavar="N",
    help="Start with this many of the --workers. Default: all, or 1 with --elastic.",
)
@click.option(
    "--guaranteed-workers",
    type=WORKERS,
    metavar="N",
    help="Start this many workers within the quota only, safe from other projects"
    " (with --elastic).",
)
@click.option(
    "--saves",
    is_flag=True,
    help="Declare that the job saves its work at SIGTERM and resumes from there, so that it is"
    " paused first and may move. An elastic job with reporting workers does not need it.",
)
@click.option(
    "--array",
    type=WORKERS,
    metavar="N",
    help="Submit this many jobs, numbered from 0 by RUNAI_ARRAY_INDEX.",
)
@click.option(
    "--priority",
    type=PRIORITY,
    help="Set the priority in the project's queue, the highest first. Default: normal.",
)
@click.option(
    "-e",
    "--env",
    cls=_RenamedOption,
    original="--environment",
    type=ENV,
    multiple=True,
    help="Set an environment variable. NAME alone passes your own value, hidden from the list"
    " of processes. May be repeated.",
)
@click.option(
    "--workdir",
    cls=_RenamedOption,
    original="--working-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Run the program in this directory. Default: the current one.",
)
@click.option(
    "--backoff-limit",
    type=click.IntRange(min=0, max=100),
    metavar="N",
    default=0,
    show_default=True,
    help="Retry this often after a failure, each time after a longer wait.",
)
@click.option(
    "--grace",
    type=GRACE,
    default="30s",
    show_default=True,
    help="Allow this long between SIGTERM and SIGKILL, for a checkpoint.",
)
@click.option(
    "--expected-runtime",
    type=DURATION,
    help="Estimate the run time, so that other users see when the GPUs become free.",
)
@click.option(
    "--time",
    "max_runtime",
    type=DURATION,
    help="Stop the job for good after this much running time (30s, 20m, 8h), without pauses."
    " With a short limit it may start sooner. Default: the project's.",
)
@click.option(
    "--image",
    cls=_RenamedOption,
    original="-i",
    metavar="NAME",
    help="Run this container image (on Kubernetes). Default: your notebook's.",
)
@click.option("--dry-run", is_flag=True, help="Print the result without submitting.")
@click.option("--wait", is_flag=True, help="Wait for the end, and exit with the program's code.")
@output_option("table", "json")
def submit(
    name: str | None,
    original_name: str | None,
    gpus: Decimal | None,
    gpu_memory: int | None,
    gpu_type: str | None,
    cpu: Decimal | None,
    memory: int | None,
    project: str | None,
    interactive: bool,
    preemptible: bool,
    workers: int,
    elastic: bool,
    min_workers: int | None,
    guaranteed_workers: int | None,
    saves: bool,
    array: int | None,
    priority: str | int | None,
    env: tuple[EnvPair, ...],
    workdir: str | None,
    backoff_limit: int,
    grace: int,
    expected_runtime: int | None,
    max_runtime: int | None,
    image: str | None,
    dry_run: bool,
    wait: bool,
    output: str,
    program: tuple[str, ...],
) -> None:
    """Submit a job, or with --interactive a session.

    \b
    runai submit exp1 --gpus 0.5 -- python train.py
    runai submit -g 1 -p vision -- python train.py --epochs 3    (with a generated name)
    runai submit sweep -g 0.25 --array 8 -- python sweep.py
    runai submit big --elastic --workers 8 -- python train.py    (on 1 to 8 GPUs)

    It returns at once; the job starts when its turn in the project's queue comes.
    Jobs beyond the quota may be paused (SIGTERM, then the grace period) and start again with
    RUNAI_RESUMED=1 and the same RUNAI_CHECKPOINT_DIR.
    """  # noqa: D301 - \b is click's mark of a block
    if name is not None and original_name is not None:
        raise click.UsageError(f"NAME and --name are both given: {name} and {original_name}.")
    folder = absolute_workdir(workdir)
    code = umask = None
    if image is None:  # an image has programs of its own
        check_program(program, folder, dict(env).get("PATH"))
        code = read_code(str(folder), named_files(program))
        umask = umask_note()
    request = submit_request(
        name=name or original_name,
        project=project,
        kind="session" if interactive else "job",
        command=list(program),
        workdir=str(folder),
        env=dict(env),
        gpus=gpus,
        gpu_memory_mib=gpu_memory,
        gpu_type=gpu_type,
        cpu=cpu,
        memory_mib=memory,
        workers=workers,
        elastic=elastic or None,
        min_workers=min_workers,
        guaranteed_workers=guaranteed_workers,
        saves=saves or None,
        array=array,
        priority=priority,
        preemptible=preemptible or None,
        backoff_limit=backoff_limit,
        grace_seconds=grace,
        expected_runtime=expected_runtime,
        max_runtime=max_runtime,
        image=image,
        code=code,
        umask=umask,
    )
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


def _print_result(reply: SubmitReply) -> None:
    """Print what was submitted, or would be; of a large array one line."""
    if reply.count > MAX_LISTED_JOBS and not reply.dry_run:
        name = f"{reply.array}-[0-{reply.count - 1}]"
        click.echo(f"array {name} submitted: {reply.count:,} jobs")
        listed: list[WorkloadView] = []
    else:
        listed = reply.workloads[:MAX_LISTED_JOBS]
    for w in listed:
        outcome = _dry_run_outcome(w, reply.unchecked) if reply.dry_run else f"submitted: {w.state}"
        click.echo(f"{w.kind} {w.id} {outcome}")
    if reply.dry_run and reply.count > MAX_LISTED_JOBS:
        click.echo(f"and so on: {reply.count:,} jobs")
    for note in reply.notes:
        click.echo(note)


def _dry_run_outcome(w: WorkloadView, unchecked: str) -> str:
    """Format the outcome of a dry run; the notes give the reason for a wait."""
    if w.reason is None:
        return "would be submitted" + ("" if unchecked else " and start at once")
    if w.reason.is_making_room and w.expected_start:
        return f"would be submitted; it {w.expected_start.text}"
    when = f", {w.expected_start.text}" if w.expected_start else ""
    return f"would be submitted and wait{when}"
