"""`runai wait`, `suspend`, `resume`, `delete`; `keep`, `release`, `regain` of idle GPUs.

Each takes one or several names and prints a line for each. An error of one workload does not stop
the rest; the exit code is 1 then.
"""

from collections.abc import Callable, Sequence
from math import inf

import click

from runai.hub_service.cli.framework.error_reporting import Command, report
from runai.hub_service.cli.framework.param_types import DURATION, WORKERS
from runai.hub_service.cli.framework.workload_names import WORKLOAD_NAME, find_all, in_project
from runai.hub_service.cli.output.waiting import wait_for
from runai.hub_service.client import Client
from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.schemas import FINISHED, ScaleRequest, WorkloadView
from runai.hub_service.wire.validation import checked

_NAMES = click.argument("names", nargs=-1, type=WORKLOAD_NAME, metavar="NAME...", required=True)


@click.command(cls=Command)
@_NAMES
@click.option("--timeout", type=DURATION, help="Wait this long at most. Default: without end.")
@in_project
@click.pass_context
def wait(
    context: click.Context, names: tuple[str, ...], timeout: int | None, project: str | None
) -> None:
    """Wait until workloads are finished, and exit with the program's code.

    It prints changes to standard error, and waits through pauses and suspensions. The code is
    the first that is not 0, in the order of the names; 1 for a deleted workload; 124 when the
    time is over. Ctrl-C and the end of the time stop no workload.

    \b
    runai wait exp1
    runai wait exp1 sweep --timeout 2h
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        found = find_all(client, names, project)
        context.exit(wait_for(client, found, timeout_s=inf if timeout is None else timeout))


@click.command(cls=Command)
@_NAMES
@in_project
def suspend(names: tuple[str, ...], project: str | None) -> None:
    """Suspend jobs: release their GPUs and remove them from the queue.

    A running job gets SIGTERM and its grace period for a checkpoint. A session cannot be
    suspended; delete it.

    \b
    runai suspend exp1
    runai suspend exp1 sweep -p vision
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        for_each(find_all(client, names, project), lambda w: client.suspend(w).state)


@click.command(cls=Command)
@_NAMES
@in_project
def resume(names: tuple[str, ...], project: str | None) -> None:
    """Put suspended jobs back into the queue.

    They keep their old places and start again from their checkpoints.

    \b
    runai resume exp1
    runai resume vision/exp1 nlp/exp1
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        for_each(find_all(client, names, project), lambda w: _resumed(client.resume(w).state))


def _resumed(state: str) -> str:
    return state if state in {"starting", "running"} else "queued again"


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=WORKLOAD_NAME, metavar="NAME...")
@click.option("--all-finished", is_flag=True, help="Delete all your finished workloads.")
@in_project
def delete(names: tuple[str, ...], all_finished: bool, project: str | None) -> None:
    """Stop workloads and remove them from the lists.

    A running workload gets SIGTERM and its grace period. Its name is free once its processes
    have ended. Its output and its checkpoint directory are removed with it; volumes of
    Kubernetes stay.

    \b
    runai delete exp1 sweep-3
    runai delete --all-finished
    """  # noqa: D301 - \b is click's mark of a block
    if bool(names) == all_finished:
        raise click.UsageError("Name workloads, or say --all-finished.")

    with Client.discover() as client:
        if all_finished:
            own_workloads = client.workloads(WorkloadFilter(project, client.whoami().name))
            workloads = [w for w in own_workloads if w.state in FINISHED]
            if not workloads:
                click.echo("Nothing of yours is finished.", err=True)
        else:
            workloads = find_all(client, names, project)

        def stop(workload: WorkloadView) -> str:
            client.delete(workload)
            return "deleted" if workload.state in FINISHED or not workload.allocated else "stopping"

        for_each(workloads, stop)


@click.command(cls=Command)
@_NAMES
@in_project
def keep(names: tuple[str, ...], project: str | None) -> None:
    """Keep idle GPUs for 30 more minutes.

    For projects that release idle GPUs; at most twice until the GPUs are used again.

    \b
    runai keep lab-bob
    runai top --idle                   which GPUs are idle, and until when they are kept
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:

        def extend(workload: WorkloadView) -> str:
            idle = client.keep(workload).idle
            return idle.text if idle else "kept"

        for_each(find_all(client, names, project), extend)


@click.command(cls=Command)
@_NAMES
@in_project
def release(names: tuple[str, ...], project: str | None) -> None:
    """Release the GPUs of sessions; the sessions continue.

    Kernels on a GPU end; files and the notebook server stay.

    \b
    runai release lab-bob
    runai release lab -p vision
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:

        def release_one(workload: WorkloadView) -> str:
            client.release(workload)
            return "gives its GPUs back"

        for_each(find_all(client, names, project), release_one)


@click.command(cls=Command)
@_NAMES
@in_project
def regain(names: tuple[str, ...], project: str | None) -> None:
    """Request the GPUs of released sessions again.

    The sessions continue while they wait in the queue.

    \b
    runai regain lab-bob
    runai regain lab -p vision
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        for_each(find_all(client, names, project), lambda w: client.regain(w).state)


def for_each(workloads: Sequence[WorkloadView], act: Callable[[WorkloadView], str]) -> None:
    """Call `act` for each workload and print the outcome; after errors continue, then exit 1."""
    refused = False
    for workload in workloads:
        try:
            outcome = act(workload)
        except RunaiError as error:
            report(error)
            refused = True
        else:
            jobs = sum(workload.states.values())
            subject = (
                f"array {workload.id} ({jobs:,} jobs)" if jobs else f"{workload.kind} {workload.id}"
            )
            click.echo(f"{subject} {outcome}")
    if refused:
        click.get_current_context().exit(1)


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=WORKLOAD_NAME, metavar="NAME...", required=True)
@click.option("--workers", type=WORKERS, metavar="N", help="Run with this many workers at most.")
@click.option(
    "--min-workers",
    type=WORKERS,
    metavar="N",
    help="Run with this many workers at least.",
)
@in_project
def scale(
    names: tuple[str, ...], workers: int | None, min_workers: int | None, project: str | None
) -> None:
    """Change the number of workers of elastic jobs.

    A running job continues: workers join when GPUs are free, and surplus workers leave with a
    checkpoint. The job needs --elastic and --workers at its submission.

    \b
    runai scale big --workers 4
    runai scale big --min-workers 2 --workers 8
    """  # noqa: D301 - \b is click's mark of a block
    if workers is None and min_workers is None:
        raise click.UsageError("Say --workers, --min-workers or both.")
    request = checked(ScaleRequest, {"workers": workers, "min_workers": min_workers})
    with Client.discover() as client:

        def resize(workload: WorkloadView) -> str:
            elastic = client.scale(workload, request).elastic
            return f"trains on {elastic.text}" if elastic else "scaled"

        for_each(find_all(client, names, project), resize)
