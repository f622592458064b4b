"""Rules of the project tree: parents exist, no cycles, no project in use is deleted.

Pure.
"""

from collections.abc import Sequence

from runai.hub_service.model.records import ProjectSpec, WorkloadId
from runai.hub_service.wire.errors import Conflict, InvalidRequest

NAMED_AT_MOST = 3


def check_parent(spec: ProjectSpec, projects: Sequence[ProjectSpec]) -> None:
    """Check that a project may have its parent.

    Raises:
        InvalidRequest: the parent is unknown, or the project would be its own ancestor.
    """
    parents = {project.name: project.parent for project in projects} | {spec.name: spec.parent}
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
    rest = len(names) - NAMED_AT_MOST
    shown = ", ".join(names[:NAMED_AT_MOST])
    return shown if rest <= 0 else f"{shown} and {rest} more"
