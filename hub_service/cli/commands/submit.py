"""`runai submit`: build the request from the command line, send it, print the first decision.

The command checks only facts of this computer (the script exists, the variable is set); the
service checks the rest.
"""

from decimal import Decimal

import click

from runai.hub_service.cli.framework.program_argument import (
    CommandAfterDashes,
    absolute_workdir,
    check_script,
)
from runai.hub_service.cli.framework.reporting import output_option
from runai.hub_service.cli.framework.values import (
    CPUS,
    ENV,
    GPUS,
    MEMORY,
    PRIORITY,
    WORKERS,
    EnvPair,
    submit_request,
)
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render, waiting
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import SubmitReply, WorkloadView

SHOWN = 10
"""Jobs of an array that are printed one by one."""


@click.command(cls=CommandAfterDashes)
@click.argument("name", required=False)
@click.option("-g", "--gpus", type=GPUS, help="GPUs of each worker: 0.5, 1, 4. Default: none.")
@click.option(
    "--gpu-memory",
    type=MEMORY,
    help="Instead of --gpus: memory of one GPU, as in 4G; the part of the GPU follows from it.",
)
@click.option(
    "--gpu-type",
    metavar="name,...",
    help="On GPUs of these types alone, the first preferred: words of its name, such as A100."
    " Default: any.",
)
@click.option("--cpu", type=CPUS, help="CPUs of each worker: 0.5, 4. Default: 1 without a GPU.")
@click.option(
    "--memory", type=MEMORY, help="Memory of each worker, as in 16G. Default: 1G without a GPU."
)
@click.option(
    "-p",
    "--project",
    type=PROJECT_NAME,
    help="Whose quota. Default: the session's, the one of `runai project use`, or your only one.",
)
@click.option(
    "--interactive", is_flag=True, help="A session: within the build quota, never preempted."
)
@click.option("--preemptible", is_flag=True, help="With --interactive: may be preempted after all.")
@click.option(
    "--workers",
    type=WORKERS,
    metavar="N",
    default=1,
    show_default=True,
    help="Processes that start together or not at all, each with its --gpus.",
)
@click.option(
    "--elastic",
    is_flag=True,
    help="As many GPUs as there are, changed while it runs: one process of 1 to a node's GPUs that"
    " asks for --gpus, or with --workers so many processes of one GPU each.",
)
@click.option(
    "--min-workers",
    type=WORKERS,
    metavar="N",
    help="With --workers: so many are enough. Default: all; with --elastic 1.",
)
@click.option(
    "--guaranteed-workers",
    type=WORKERS,
    metavar="N",
    help="With --elastic: so many wait for the quota, and no other project takes them.",
)
@click.option(
    "--saves",
    is_flag=True,
    help="It saves its work when it is paused (SIGTERM), and goes on from there: first to give way,"
    " and may be moved. Known of an elastic job whose workers report.",
)
@click.option(
    "--array",
    type=WORKERS,
    metavar="N",
    help="So many jobs, told apart by RUNAI_ARRAY_INDEX 0, 1, …",
)
@click.option("--priority", type=PRIORITY, help="Who is first in the project. Default: normal.")
@click.option(
    "-e",
    "--env",
    type=ENV,
    multiple=True,
    help="A variable of the job's environment. NAME alone hands on your own, and keeps its value"
    " off the command line, which others may see. May be repeated.",
)
@click.option(
    "--workdir",
    type=click.Path(file_okay=False),
    help="Where the program runs. Default: this directory.",
)
@click.option(
    "--backoff-limit",
    type=click.IntRange(min=0, max=100),
    metavar="N",
    default=0,
    show_default=True,
    help="How often to try again after a failure, waiting longer each time.",
)
@click.option(
    "--grace",
    type=click.IntRange(min=0, max=3600),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL when the job is paused: time for a checkpoint.",
)
@click.option(
    "--expected-runtime",
    metavar="2h",
    help="How long it runs once started, if you know: tells others, and you, when GPUs are free.",
)
@click.option(
    "--time",
    "max_runtime",
    metavar="8h",
    help="Stop it for good after so long of running, pauses not counted (30s, 20m, 8h). A short"
    " limit may let it start sooner. Default: the project's.",
)
@click.option(
    "--image",
    metavar="name",
    help="On Kubernetes: the container image. Default: that of your notebook.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen; store nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the program's code.")
@output_option("table", "json")
def submit(
    name: str | None,
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
    expected_runtime: str | None,
    max_runtime: str | None,
    image: str | None,
    dry_run: bool,
    wait: bool,
    output: str,
    program: tuple[str, ...],
) -> None:
    """Submit a job, or with --interactive a session.

    \b
    runai submit exp1 --gpus 0.5 -- python train.py
    runai submit -g 1 -p vision -- python train.py --epochs 3    (the name is made up)
    runai submit sweep -g 0.25 --array 8 -- python sweep.py
    runai submit big --elastic --workers 8 -- python train.py    (on 1 to 8 GPUs)

    It returns at once: the job is in the project's queue and starts when its turn comes.
    Jobs beyond the quota may be paused (SIGTERM, then the grace period) and start again with
    RUNAI_RESUMED=1 and the same RUNAI_CHECKPOINT_DIR.
    """  # noqa: D301 - \b is click's mark of a block
    folder = absolute_workdir(workdir)
    check_script(program, folder)
    request = submit_request(
        name=name,
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
    )
    with Client.discover() as client:
        reply = client.submit(request, dry_run=dry_run)
        if output in render.DATA:
            render.show_data(reply, output)
        else:
            _print_result(reply)
        if wait and not dry_run:
            code = waiting.wait_for(
                client, [reply.array] if reply.array else reply.ids(), quiet=output in render.DATA
            )
            click.get_current_context().exit(code)


def _print_result(reply: SubmitReply) -> None:
    if reply.count > SHOWN and not reply.dry_run:
        name = f"{reply.array}-[0-{reply.count - 1}]"
        click.echo(f"array {name} submitted: {reply.count:,} jobs")
        shown: list[WorkloadView] = []
    else:
        shown = reply.workloads[:SHOWN]
    for w in shown:
        outcome = _dry_run_outcome(w) if reply.dry_run else f"submitted: {w.state}"
        click.echo(f"{w.kind} {w.id} {outcome}")
    if reply.dry_run and reply.count > SHOWN:
        click.echo(f"and so on: {reply.count:,} jobs")
    for note in reply.notes:
        click.echo(note)


def _dry_run_outcome(w: WorkloadView) -> str:
    """Format the outcome of a dry run; the notes give the reason for a wait."""
    if w.reason is None:
        return "would be submitted and start at once"
    when = f", {w.expected_start.text}" if w.expected_start else ""
    return f"would be submitted and wait{when}"
