"""Authorization: one table of actions and roles, and the function that consults it.

Handlers call `authorise` before anything else; views call `may` to leave out what a caller must not
see. tests/authz.yaml lists the action of each route.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from runai.hub_service.model.records import ProjectSpec, WorkloadId, WorkloadSpec
from runai.hub_service.wire.errors import Forbidden, NotFound

SUBMIT_SCOPE = "custom:runai:submit"
ADMIN_SCOPE = "custom:runai:admin"
HUB_ADMIN_SCOPES = frozenset({"admin:users", "admin-ui"})
"""Scopes of hub admins. A token with one of them is an admin's, never a notebook's."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Sender of a request: a user, the hub, an agent or a worker.

    The hub acts for any user. An agent only delivers the samples of its node. A worker is a pod of
    an elastic job and speaks for itself alone.
    """

    name: str
    """The user's name; an agent's is its node's, a worker's its pod's (`namespace/name`)."""
    kind: Literal["user", "hub", "agent", "worker"] = "user"
    admin: bool = False
    """True with the scope `custom:runai:admin`, and for a hub admin logged in on the pages."""
    admin_elsewhere: bool = False
    """True for a hub admin with a token, such as a notebook's, without the admin scopes."""
    groups: frozenset[str] = frozenset()
    may_write: bool = True
    """True if the token has `custom:runai:submit`; without it, it only reads."""
    xsrf: str = field(default="", repr=False)
    """XSRF token required for changes by a page with the login cookie; "" with a token."""


class Role(StrEnum):
    """Relation of an actor to a project or a workload."""

    USER = "user"
    """Every logged-in user."""
    MEMBER = "member"
    OWNER = "owner"
    """Owner of a workload in a project that they belong to."""
    FORMER = "former member"
    """Owner of a workload in a project that they left."""
    PROJECT_ADMIN = "project admin"
    ADMIN = "admin"
    HUB = "hub"
    AGENT = "agent"
    WORKER = "worker"


class Action(StrEnum):
    """Action that a request performs."""

    SEE_CLUSTER = "see the cluster"
    """Quota bars, devices, own usage; entries of other users are left out."""
    SEE_WORKLOAD = "see"
    READ_WORKLOAD = "read"
    """Command, source, logs, history."""
    READ_ENVIRONMENT = "read the environment of"
    RUN_IN = "run programs in"
    """Such a program has the workload's environment, its tokens too."""
    CHANGE_WORKLOAD = "change"
    """Suspend, release, scale down, delete."""
    REQUEST_GPUS = "ask for GPUs for"
    """Resume, scale up, keep, regain."""
    SUBMIT = "submit to"
    SUBMIT_AT_ANY_PRIORITY = "submit with a priority of its own to"
    SUBMIT_ON_BEHALF = "submit for others"
    ATTACH = "attach a process to"
    SET_MEMBERS = "change the members of"
    SET_PROJECT = "create, delete or change the quota of a project"
    END_MEMBERSHIPS = "end all memberships of a user"
    READ_PAST = "read what everybody has run"
    REPORT = "deliver samples"
    TRAIN = "hear who trains"
    """The workers of elastic jobs, which also report their progress, each its own."""


_ALL_USERS = {Role.USER, Role.HUB}
_OWNERS = {Role.OWNER, Role.FORMER}
_IN_PROJECT = {Role.MEMBER, Role.PROJECT_ADMIN}
_PROCESSES = {Role.HUB, Role.AGENT, Role.WORKER}
_IN_CHARGE = {Role.PROJECT_ADMIN, Role.ADMIN}

ALLOWED: Mapping[Action, frozenset[Role]] = {
    Action.SEE_CLUSTER: frozenset(_ALL_USERS),
    Action.SEE_WORKLOAD: frozenset({Role.ADMIN, Role.HUB} | _OWNERS | _IN_PROJECT),
    Action.READ_WORKLOAD: frozenset({Role.HUB} | _OWNERS | _IN_CHARGE),
    Action.READ_ENVIRONMENT: frozenset({Role.HUB} | _OWNERS),
    Action.RUN_IN: frozenset({Role.HUB} | _OWNERS),
    Action.CHANGE_WORKLOAD: frozenset({Role.HUB} | _OWNERS | _IN_CHARGE),
    Action.REQUEST_GPUS: frozenset({Role.OWNER, Role.HUB} | _IN_CHARGE),
    Action.SUBMIT: frozenset(_IN_PROJECT),
    Action.SUBMIT_AT_ANY_PRIORITY: frozenset(_IN_CHARGE),
    Action.SUBMIT_ON_BEHALF: frozenset({Role.HUB}),
    Action.ATTACH: frozenset({Role.HUB}),
    Action.SET_MEMBERS: frozenset(_IN_CHARGE),
    Action.SET_PROJECT: frozenset({Role.ADMIN}),
    Action.END_MEMBERSHIPS: frozenset({Role.HUB}),
    Action.READ_PAST: frozenset({Role.ADMIN}),
    Action.REPORT: frozenset({Role.AGENT}),
    Action.TRAIN: frozenset({Role.WORKER}),
}

WRITES: frozenset[Action] = frozenset(
    {
        Action.CHANGE_WORKLOAD,
        Action.REQUEST_GPUS,
        Action.READ_ENVIRONMENT,
        Action.RUN_IN,
        Action.SUBMIT,
        Action.SUBMIT_AT_ANY_PRIORITY,
        Action.SUBMIT_ON_BEHALF,
        Action.SET_MEMBERS,
        Action.SET_PROJECT,
    }
)
"""Actions that need `custom:runai:submit` in a user's token.

Reading an environment changes nothing, but its secrets allow everything that the program may do.
"""


def is_project_admin(actor: Actor, project: ProjectSpec) -> bool:
    """Return True if the actor is one of the project's own admins."""
    return actor.kind == "user" and (
        actor.name in project.admins or not actor.groups.isdisjoint(project.admin_groups)
    )


def is_member(actor: Actor, project: ProjectSpec) -> bool:
    """Return True if the actor is the project's member, by name or group, or admin."""
    return actor.kind == "user" and (
        actor.name in project.members
        or not actor.groups.isdisjoint(project.groups)
        or is_project_admin(actor, project)
    )


def roles(
    actor: Actor, project: ProjectSpec | None = None, workload: WorkloadSpec | None = None
) -> frozenset[Role]:
    """Return all roles of the actor in the project and the workload."""
    if actor.kind != "user":
        return frozenset({Role(actor.kind)})
    is_true = {
        Role.USER: True,
        Role.ADMIN: actor.admin,
        Role.MEMBER: project is not None and is_member(actor, project),
        Role.PROJECT_ADMIN: project is not None and is_project_admin(actor, project),
    }
    if workload is not None and workload.user == actor.name:
        is_former = project is not None and not is_true[Role.MEMBER]
        is_true[Role.FORMER if is_former else Role.OWNER] = True
    return frozenset(role for role, applies in is_true.items() if applies)


def may(
    actor: Actor,
    action: Action,
    project: ProjectSpec | None = None,
    workload: WorkloadSpec | None = None,
) -> bool:
    """Return True if the table allows the action and, for writes, the token does too."""
    if action in WRITES and not actor.may_write:
        return False
    return not ALLOWED[action].isdisjoint(roles(actor, project, workload))


def authorise(
    actor: Actor,
    action: Action,
    project: ProjectSpec | None = None,
    workload: WorkloadSpec | None = None,
) -> None:
    """Return if the actor may do this, else raise.

    Raises:
        Forbidden: the actor may not.
        NotFound: the actor may not learn that the workload exists.
    """
    if may(actor, action, project, workload):
        return
    if workload is not None and not may(actor, Action.SEE_WORKLOAD, project, workload):
        raise no_such_workload(workload.id)
    if action in WRITES and not actor.may_write:
        raise Forbidden(
            f"This token may only read: it lacks {SUBMIT_SCOPE}.",
            hint="Make one with that scope on the hub's token page, or ask a hub admin.",
            code="missing_scope",
        )
    if actor.admin_elsewhere and Role.ADMIN in ALLOWED[action]:
        raise Forbidden(
            f"You are an admin, but this token has no admin rights: it lacks {ADMIN_SCOPE}.",
            hint="No notebook's token has them. Use the page GPUs, or `runai login` elsewhere.",
            code="missing_scope",
        )
    if workload is not None and project is not None and workload.user == actor.name:
        raise Forbidden(
            f"You are no member of project {project.name} any more, so {workload.id} starts and"
            " grows no more.",
            hint=f"You may read, stop and delete it; an admin of {project.name} can add you again.",
            code="not_a_member",
        )
    raise Forbidden(*_sentence(action, project, workload))


def no_such_workload(workload: WorkloadId) -> NotFound:
    """Return one error for workloads that do not exist and for hidden ones: the same."""
    return NotFound(f"There is no workload {workload}.", hint="`runai list` shows yours.")


def _sentence(
    action: Action, project: ProjectSpec | None, workload: WorkloadSpec | None
) -> tuple[str]:
    """Return the message of a refusal: it names the roles that may perform the action."""
    if workload is not None:
        subject = " or ".join(
            {Role.OWNER: workload.user, Role.PROJECT_ADMIN: "an admin of its project"}[role]
            for role in (Role.OWNER, Role.PROJECT_ADMIN)
            if role in ALLOWED[action]
        )
        return (f"Only {subject or 'the hub'} may {action} {workload.id}.",)
    if action is Action.SUBMIT and project is not None:
        return (f"You are not a member of project {project.name}.",)
    if ALLOWED[action] == {Role.ADMIN}:
        return (f"Only hub admins may {action}.",)
    if ALLOWED[action] <= _PROCESSES:
        return (f"Only the platform's own {min(ALLOWED[action])} may {action}.",)
    project_text = f" project {project.name}" if project is not None else ""
    subject = " and ".join(f"{role}s" for role in Role if role in ALLOWED[action])
    return (f"Only {subject} may {action}{project_text}.",)
