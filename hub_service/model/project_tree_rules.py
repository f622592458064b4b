"""Rules of the project tree: parents exist, no cycles, few levels, no project in use is deleted.

Pure.
"""

from collections.abc import Mapping, Sequence

from runai.hub_service.model.records import ProjectSpec, WorkloadId
from runai.hub_service.scheduler.model.snapshot import MAX_LEVELS
from runai.hub_service.wire.errors import Conflict, InvalidRequest

MAX_NAMED = 3


def check_parent(spec: ProjectSpec, projects: Sequence[ProjectSpec]) -> None:
    """Check that a project may have its parent.

    Raises:
        InvalidRequest: the parent is unknown, the project would be its own ancestor, or the tree
            would have too many levels.
    """
    before = {project.name: project.parent for project in projects}
    parents = before | {spec.name: spec.parent}
    above, seen = spec.parent, [spec.name]
    while above is not None:
        if above not in parents:
            raise InvalidRequest(
                f"Project {spec.name} cannot have the parent {above}: there is no such project.",
                hint="Create the parent first.",
                code="unknown_parent",
            )
        seen.append(above)
        if above == spec.name:
            raise InvalidRequest(
                f"Project {spec.name} would be its own ancestor: {' < '.join(seen)}.",
                hint="Choose another parent.",
                code="project_cycle",
            )
        above = parents[above]
    levels = len(seen) + _levels_below(spec.name, parents)
    # A tree that an earlier version stored may have more, and stays changeable.
    if levels > MAX_LEVELS and before.get(spec.name) != spec.parent:
        raise InvalidRequest(
            f"Project {spec.name} cannot have the parent {spec.parent}: there would be"
            f" {levels} levels of projects.",
            hint=f"At most {MAX_LEVELS} are possible: choose a parent further up.",
            code="too_many_levels",
        )


def _levels_below(name: str, parents: Mapping[str, str | None]) -> int:
    """Return the levels of a project's descendants."""
    levels, above = -1, {name}
    while above:
        levels, above = levels + 1, {child for child, parent in parents.items() if parent in above}
    return levels


def check_deletion(
    name: str,
    projects: Sequence[ProjectSpec],
    unfinished: Sequence[WorkloadId],
    finished: Sequence[WorkloadId] = (),
) -> None:
    """Check that a project is unused.

    `finished` are workloads that stay after the deletion: a later project of that name would have
    them.

    Raises:
        Conflict: it has children, unfinished workloads, or `finished` ones.
    """
    children = [project.name for project in projects if project.parent == name]
    if children:
        raise Conflict(
            f"Project {name} has the children {_named(children)}.",
            hint="Delete them first, or give them another parent.",
            code="project_in_use",
        )
    if unfinished:
        raise Conflict(
            f"Project {name} has unfinished workloads: {_named(unfinished)}.",
            hint="Delete them first, or wait for them.",
            code="project_in_use",
        )
    if finished:
        many = f"{len(finished)} finished workload{'' if len(finished) == 1 else 's'}"
        raise Conflict(
            f"Project {name} has {many}: {_named(finished)}.",
            hint="Delete them first (runai delete): the next project of that name would have them.",
            code="project_in_use",
        )


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    listed = ", ".join(names[:MAX_NAMED])
    return listed if rest <= 0 else f"{listed} and {rest} more"
