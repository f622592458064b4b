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
    stored_parents = {project.name: project.parent for project in projects}
    parents = stored_parents | {spec.name: spec.parent}
    ancestor, chain = spec.parent, [spec.name]
    while ancestor is not None:
        if ancestor not in parents:
            raise InvalidRequest(
                f"Project {spec.name} cannot have the parent {ancestor}: there is no such project.",
                hint="Create the parent first.",
                code="unknown_parent",
            )
        chain.append(ancestor)
        if ancestor == spec.name:
            raise InvalidRequest(
                f"Project {spec.name} would be its own ancestor: {' < '.join(chain)}.",
                hint="Choose another parent.",
                code="project_cycle",
            )
        ancestor = parents[ancestor]
    levels = len(chain) + _levels_below(spec.name, parents)
    # A tree that an earlier version stored may have more, and stays changeable.
    if levels > MAX_LEVELS and stored_parents.get(spec.name) != spec.parent:
        raise InvalidRequest(
            f"Project {spec.name} cannot have the parent {spec.parent}: there would be"
            f" {levels} levels of projects.",
            hint=f"At most {MAX_LEVELS} are possible: choose a parent further up.",
            code="too_many_levels",
        )


def _levels_below(name: str, parents: Mapping[str, str | None]) -> int:
    """Return the levels of a project's descendants."""
    levels, generation = -1, {name}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        levels += 1
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
            f"Project {name} has the children {_first_names(children)}.",
            hint="Delete them first, or give them another parent.",
            code="project_in_use",
        )
    if unfinished:
        raise Conflict(
            f"Project {name} has unfinished workloads: {_first_names(unfinished)}.",
            hint="Delete them first, or wait for them.",
            code="project_in_use",
        )
    if finished:
        many = f"{len(finished)} finished workload{'' if len(finished) == 1 else 's'}"
        raise Conflict(
            f"Project {name} has {many}: {_first_names(finished)}.",
            hint="Delete them first (runai delete): the next project of that name would have them.",
            code="project_in_use",
        )


def _first_names(names: Sequence[str]) -> str:
    """Return the first MAX_NAMED names, and how many more there are."""
    rest = len(names) - MAX_NAMED
    listed = ", ".join(names[:MAX_NAMED])
    return listed if rest <= 0 else f"{listed} and {rest} more"
