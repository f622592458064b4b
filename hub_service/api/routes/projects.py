"""Routes of projects: list, show, create or change, delete."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter

from runai.hub_service.api.auth.permissions import Action, authorise
from runai.hub_service.api.middleware.request_bodies import UniqueKeys
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep
from runai.hub_service.model.gpu_types import checked_table
from runai.hub_service.model.project_changes import changed_project
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.wire.base_schema import ProjectName, UserName
from runai.hub_service.wire.errors import NotFound, Unavailable
from runai.hub_service.wire.schemas import ProjectPut, ProjectView

router = APIRouter(route_class=UniqueKeys, prefix="/projects", tags=["projects"])
members = APIRouter(route_class=UniqueKeys, prefix="/members", tags=["projects"])

MAX_HUB_LOOKUPS = 20
"""New members of one change that are looked up at the hub."""
_BY_PROJECT_ADMINS = {"members", "groups"}


@router.get("")
async def list_projects(platform: PlatformDep, caller: Caller) -> list[ProjectView]:
    """List all projects with their shares of the last cycle."""
    authorise(caller, Action.SEE_CLUSTER)
    return (await platform.viewer(caller, progress_of=())).projects()


@router.get("/{name}")
async def show(name: ProjectName, platform: PlatformDep, caller: Caller) -> ProjectView:
    """Return one project."""
    authorise(caller, Action.SEE_CLUSTER)
    spec = (await platform.project_specs()).get(name)
    if spec is None:
        raise _no_such(name)
    return (await platform.viewer(caller, progress_of=())).project(spec)


@router.put("/{name}")
async def put(
    name: ProjectName, change: ProjectPut, platform: PlatformDep, caller: Caller
) -> ProjectView:
    """Create a project, or change the given fields."""
    given = {field: getattr(change, field) for field in change.model_fields_set}

    def changed(stored: ProjectSpec | None) -> ProjectSpec:
        """Return the changed project if the caller may change it."""
        changes_members_only = stored is not None and given.keys() <= _BY_PROJECT_ADMINS
        action = Action.SET_MEMBERS if changes_members_only else Action.SET_PROJECT
        authorise(caller, action, stored)
        spec = changed_project(stored or ProjectSpec(name), given)
        if "quota" in given and spec.quota_by_type is not None:
            return replace(spec, quota_by_type=checked_table(spec.quota_by_type, types))
        return spec

    types = (await platform.viewer(caller, progress_of=())).read_model.gpu_types
    before = (await platform.project_specs()).get(name)
    changed(before)  # refuse before anything is stored
    record = await platform.cluster.change_project(name, changed)
    if platform.former_members is not None:
        await platform.former_members.refresh_quickly()
    view = (await platform.viewer(caller, progress_of=())).project(record.spec)
    old_names = {*before.members, *before.admins} if before is not None else set()
    added = [n for n in dict.fromkeys((*view.members, *view.admins)) if n not in old_names]
    notes = await _notes_on_unknown(platform, added[:MAX_HUB_LOOKUPS])
    return view.model_copy(update={"notes": [*view.notes, *notes]})


async def _notes_on_unknown(platform: Platform, names: Sequence[str]) -> list[str]:
    """Return a note for each name that JupyterHub does not know; none if it does not answer."""
    notes = []
    for name in names:
        try:
            await platform.authenticator.person(name)
        except NotFound:
            notes.append(
                f"JupyterHub knows no user {name} yet: is the name right?"
                " It counts from the first log-in on."
            )
        except Unavailable:
            break
    return notes


@router.delete("/{name}", status_code=204)
async def delete(name: ProjectName, platform: PlatformDep, caller: Caller) -> None:
    """Delete a project that has no children and no unfinished workloads.

    Its finished workloads are deleted with it; on Kubernetes it must have none.
    """
    authorise(caller, Action.SET_PROJECT)
    if name not in await platform.project_specs():
        raise _no_such(name)
    await platform.cluster.delete_project(name)


@members.delete("/{name}", status_code=204)
async def end_memberships(name: UserName, platform: PlatformDep, caller: Caller) -> None:
    """Remove a forgotten user from the members and admins of all projects.

    Those of the projects file are members again at the next start.
    """
    authorise(caller, Action.END_MEMBERSHIPS)

    def without_user(stored: ProjectSpec | None) -> ProjectSpec:
        if stored is None:
            raise _no_such(project)  # deleted meanwhile
        remaining = [
            tuple(n for n in names if n != name) for names in (stored.members, stored.admins)
        ]
        return replace(stored, members=remaining[0], admins=remaining[1])

    for project, spec in (await platform.project_specs()).items():
        if name in (*spec.members, *spec.admins):
            await platform.cluster.change_project(project, without_user)
    if platform.former_members is not None:
        await platform.former_members.refresh_quickly()


def _no_such(name: str) -> NotFound:
    return NotFound(
        f"There is no project {name}.",
        hint="`runai project list` shows all.",
        code="unknown_project",
    )
