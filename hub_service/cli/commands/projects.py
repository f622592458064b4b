"""`runai project`: create, set, list, delete and use.

There is one option for each field of a project. Users and groups are added and removed one by one:
`set` edits the existing list.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

import click

from runai.hub_service.cli.commands.listing import show_projects
from runai.hub_service.cli.framework.cli_config import use_project
from runai.hub_service.cli.framework.error_reporting import Group, output_option
from runai.hub_service.cli.framework.param_types import (
    ANY_DURATION,
    DURATION,
    DURATION_OR_NONE,
    GPUS,
    QUOTA,
    UNLIMITED_GPUS,
    project_put,
)
from runai.hub_service.cli.framework.workload_names import PROJECT_NAME
from runai.hub_service.cli.output import render
from runai.hub_service.client import Client, texts
from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.errors import Conflict, NotFound
from runai.hub_service.wire.schemas import ProjectView

F = TypeVar("F", bound=Callable[..., Any])

_PEOPLE: Final = {
    "members": ("member", "a user with the right to submit"),
    "groups": ("group", "a JupyterHub group with the right to submit"),
    "admins": ("admin", "an admin of members and workloads"),
    "admin_groups": ("admin-group", "a JupyterHub group of such admins"),
}


_IDLE: Final = {
    "tell-idle": ("idle_session", "notify_s", "Notify a session's user after its GPU was idle"),
    "release-idle": (
        "idle_session",
        "release_s",
        "Release a session's GPU after it was idle",
    ),
    "stop-idle-sessions": ("idle_session", "stop_s", "Stop a session after its GPU was idle"),
    "stop-idle-jobs": ("idle_job", "stop_s", "Suspend a job after its GPUs were idle"),
}


_TIME: Final = {
    "default-time-jobs": ("time_job", "default_s", "Set the default time limit of jobs"),
    "max-time-jobs": ("time_job", "most_s", "Refuse jobs with a longer time limit"),
    "default-time-sessions": (
        "time_session",
        "default_s",
        "Set the default time limit of sessions",
    ),
    "max-time-sessions": (
        "time_session",
        "most_s",
        "Refuse sessions with a longer time limit",
    ),
}
_WARN: Final = {
    "warn-time-jobs": ("time_job", "warn_s", "Warn a job's user this long before its time limit"),
    "warn-time-sessions": (
        "time_session",
        "warn_s",
        "Warn a session's user this long before its time limit",
    ),
}


def _field_options(command: F) -> F:
    """Add one option for each numeric field of a project."""
    options = [
        click.option(
            "--quota",
            type=QUOTA,
            help="Guarantee this many GPUs (none: no bound), also by type ('h100=2,*=4').",
        ),
        click.option(
            "--build-quota",
            type=UNLIMITED_GPUS,
            help="Let sessions use this part of the quota (none: all of it).",
        ),
        click.option(
            "--limit",
            type=UNLIMITED_GPUS,
            help="Limit the GPUs of the project (none: no limit).",
        ),
        click.option(
            "--weight",
            type=click.IntRange(min=0),
            metavar="N",
            help="Set the weight of its share of idle GPUs. Default: as the quota.",
        ),
        click.option(
            "--priority",
            type=click.IntRange(min=0),
            metavar="N",
            help="Set the priority for idle GPUs, the highest first. Default: 100.",
        ),
        click.option(
            "--never-lent", type=GPUS, help="Keep this many GPUs of the quota idle for its members."
        ),
        click.option(
            "--min-runtime",
            type=ANY_DURATION,
            help="Protect its jobs from pauses for other projects this long after a start (10m).",
        ),
        *(
            click.option(
                f"--{name}", type=DURATION_OR_NONE, help=f"{what} for this long (30m; none: never)."
            )
            for name, (_, _, what) in _IDLE.items()
        ),
        *(
            click.option(f"--{name}", type=DURATION_OR_NONE, help=f"{what} (8h; none: no limit).")
            for name, (_, _, what) in _TIME.items()
        ),
        *(
            click.option(f"--{name}", type=DURATION, help=f"{what} (10m).")
            for name, (_, _, what) in _WARN.items()
        ),
        click.option(
            "--umask",
            metavar="OCTAL",
            help="Set the umask of its workloads with --system-users (002; none: their own).",
        ),
        click.option(
            "--parent",
            type=PROJECT_NAME,
            help="Make it a part of this project (none: no parent).",
        ),
        click.option(
            "--node-types-build",
            metavar="NAME,...",
            help="Run its sessions only on nodes of these types (none: any).",
        ),
        click.option(
            "--node-types-train",
            metavar="NAME,...",
            help="Run its jobs only on nodes of these types (none: any).",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _people_options(*, removable: bool) -> Callable[[F], F]:
    """Return the decorator for `--add-member` and so on; `create` has `--member` too."""

    def add(command: F) -> F:
        for field, (word, meaning) in reversed(_PEOPLE.items()):
            names = [f"--add-{word}"] if removable else [f"--{word}", f"--add-{word}"]
            if removable:
                command = click.option(
                    f"--remove-{word}",
                    f"remove_{field}",
                    multiple=True,
                    metavar="NAME",
                    help=f"Remove {meaning}. May be repeated.",
                )(command)
            command = click.option(
                *names,
                f"add_{field}",
                multiple=True,
                metavar="NAME",
                help=f"Add {meaning}. May be repeated.",
            )(command)
        return command

    return add


@click.group(cls=Group)
def project() -> None:
    """Create, change, list and choose projects.

    A project owns quota: GPUs guaranteed to its members' workloads. Hub admins create
    projects and set quotas; a project's own admins manage its members.
    """


@project.command()
@click.argument("name")
@_field_options
@_people_options(removable=False)
def create(name: str, **options: Any) -> None:
    """Create a project.

    \b
    runai project create vision --quota 2.5 --member ana --member bo
    runai project create students --parent vision --quota 0.5 --max-time-jobs 8h
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        if any(p.name == name for p in client.projects()):
            raise Conflict(
                f"There is a project {name} already.",
                hint=f"Change it with `runai project set {name}`.",
            )
        made = client.put_project(name, project_put(**_changes(options, None)))
        notes = client.overview().notes
    own = [f"{name}: {note}" for note in made.notes]
    _print_result(f"project {name} created: {_summary(made)}", [*own, *notes])


@project.command(name="set")
@click.argument("name", type=PROJECT_NAME)
@_field_options
@_people_options(removable=True)
def set_(name: str, **options: Any) -> None:
    """Change the named settings of a project.

    \b
    runai project set vision --quota 4 --limit none
    runai project set vision --quota 'h100=2,*=4'
    runai project set vision --add-member ana --remove-member bo
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        changes = _changes(options, client.project(name))
        if not changes:
            raise click.UsageError("There is nothing to change: give at least one option.")
        changed = client.put_project(name, project_put(**changes))
        notes = client.overview().notes
    own = [f"{name}: {note}" for note in changed.notes]
    _print_result(f"project {name} changed: {_summary(changed)}", [*own, *notes])


@project.command(name="list")
@output_option("table", "wide", "json")
def list_(output: str) -> None:
    """List all projects, with quotas and allocated GPUs.

    \b
    runai project list -o wide
    runai project list -o json
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        show_projects(client, output)


@project.command()
@click.argument("names", nargs=-1, required=True, type=PROJECT_NAME, metavar="NAME...")
def delete(names: Sequence[str]) -> None:
    """Delete projects that have no unfinished workloads.

    Finished workloads are deleted too. On Kubernetes delete finished Jobs first.

    \b
    runai project delete students
    runai project delete audio video
    """  # noqa: D301 - \b is click's mark of a block
    with Client.discover() as client:
        for name in names:
            client.delete_project(name)
            click.echo(f"project {name} deleted")


@project.command()
@click.argument("name", type=PROJECT_NAME)
def use(name: str) -> None:
    """Choose the default project of your submissions.

    \b
    runai project use vision
    runai submit exp1 -p nlp -- true     another project, once
    """  # noqa: D301 - \b is click's mark of a block
    choose(name)


def choose(name: str) -> None:
    """Save a default project after checking that it exists."""
    with Client.discover() as client:
        known = client.projects()
    if all(p.name != name for p in known):
        yours = render.listed(p.name for p in known if p.may_submit)
        raise NotFound(f"There is no project {name}.", hint=f"Yours: {yours}.")
    use_project(name)
    click.echo(f"What you submit goes to project {name} from now on.")
    if not any(p.may_submit for p in known if p.name == name):
        click.echo("You are no member of it yet: an admin of it can add you.", err=True)


def _changes(options: dict[str, Any], before: ProjectView | None) -> dict[str, Any]:
    """Convert options to fields; lists start from `before`, with additions and removals."""
    changes: dict[str, Any] = {}
    for field in (
        "quota",
        "build_quota",
        "limit",
        "weight",
        "priority",
        "never_lent",
        "min_runtime",
        "umask",
    ):
        value: Decimal | int | str | dict[str, Decimal | None] | None = options[field]
        if value is not None:
            changes[field] = None if value == "none" else value
    for name, (field, step, _) in (_IDLE | _TIME | _WARN).items():
        after = options[name.replace("-", "_")]
        if after is not None:
            changes.setdefault(field, {})[step] = None if after == "none" else after
    if options["parent"] is not None:
        changes["parent"] = None if options["parent"] == "none" else options["parent"]
    for field in ("node_types_build", "node_types_train"):
        if options[field] is not None:
            types = [t.strip() for t in options[field].split(",") if t.strip()]
            changes[field] = None if types == ["none"] else types
    for field in _PEOPLE:
        added, removed = options[f"add_{field}"], options.get(f"remove_{field}", ())
        if added or removed:
            current: list[str] = getattr(before, field) if before else []
            _check_removable(removed, current, field, before)
            changes[field] = [n for n in dict.fromkeys([*current, *added]) if n not in removed]
    return changes


def _check_removable(
    removed: Sequence[str], current: Sequence[str], field: str, before: ProjectView | None
) -> None:
    """Raise NotFound for a name to remove that the project does not have."""
    missing = next((name for name in removed if name not in current), None)
    if missing is not None and before is not None:
        raise NotFound(
            f"{missing} is not among the {field.replace('_', ' ')} of {before.name}.",
            hint=f"Those are: {render.listed(current)}.",
        )


def _print_result(what: str, notes: Sequence[str]) -> None:
    click.echo(what)
    for note in notes:
        click.echo(note, err=True)


def _summary(p: ProjectView) -> str:
    """Format a project's quotas, limits and members for one line."""
    parts = [f"quota {render.quota_of(p)}", f"build quota {render.quota(p.build_quota)}"]
    if p.limit is not None:
        parts.append(f"limit {texts.gpus(p.limit)}")
    for kind, rules in (("jobs", p.time_job), ("sessions", p.time_session)):
        if (own := rules.default_s or rules.most_s) is not None:
            parts.append(
                f"{kind} at most {clock_text(rules.most_s or own)}, unasked {clock_text(own)}"
            )
    if p.members or p.groups:
        parts.append(f"members {render.listed([*p.members, *(f'group {g}' for g in p.groups)])}")
    return ", ".join(parts)
