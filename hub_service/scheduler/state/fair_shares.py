"""Fair shares: the division of the cluster among projects in one cycle (S1 to S5).

A pure calculation on the projects of the tree, from capacity and requests; it runs before any
ordering and placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import reset_and_group


def set_fair_shares(
    tree: ProjectTree,
    capacity: int,
    history_weight: int = 0,
    by_type: Mapping[str, int] | None = None,
) -> None:
    """Set every project's fair share, level by level: roots share the cluster (S3).

    Children share their parent's fair share; a share is a target, not a cap (S4). With a
    `history_weight`, projects that recently used more than their part yield surplus to their
    siblings (S5). `by_type` is the capacity of each GPU type, for quotas by GPU type (Q4).

    >>> from runai.hub_service.scheduler.model.snapshot import Project
    >>> tree = ProjectTree([Project(name="a", quota=3000), Project(name="b", quota=1000)])
    >>> for project in tree.roots:
    ...     project.requested = 9000
    >>> set_fair_shares(tree, 8000)
    >>> [project.fair_share for project in tree.roots]
    [6000, 2000]
    """
    _divide_level(tree.roots, capacity, history_weight, by_type or {})


def _divide_level(
    siblings: list[ProjectNode], capacity: int, history_weight: int, by_type: Mapping[str, int]
) -> None:
    """Set the fair shares of siblings and their descendants; GPU types are divided apart (Q4)."""
    if any(project.parts for project in siblings):
        for projects, group_capacity in reset_and_group(siblings, capacity, by_type):
            _divide_among(projects, group_capacity, history_weight)
        for project in siblings:
            if project.parts:
                project.fair_share = sum(part.fair_share for part in project.parts)
    else:
        _divide_among(siblings, capacity, history_weight)
    for project in siblings:
        if project.children and not project.parts:
            _divide_level(project.children, project.fair_share, history_weight, by_type)


def _divide_among(siblings: list[ProjectNode], capacity: int, history_weight: int) -> None:
    """Set the fair shares of siblings: their guarantees, then surplus by priority and weight."""
    for project in siblings:
        # S1: the guarantee comes first, and is never scaled down when quotas oversubscribe. An
        # unlimited quota is worth the whole capacity.
        quota = capacity if project.is_unlimited else project.quota
        project.fair_share = min(quota, project.limit, project.requested, project.reach)
    remaining = capacity - sum(project.fair_share for project in siblings)
    buckets: defaultdict[int, list[ProjectNode]] = defaultdict(list)
    for project in siblings:
        buckets[project.priority].append(project)
    recipients: list[ProjectNode] = []
    for priority in sorted(buckets, reverse=True):
        remaining, in_order = _divide_by_weight(buckets[priority], remaining, history_weight)
        recipients += in_order
    for project in recipients:  # of whole GPUs that flooring left over (S2)
        extra = min(WHOLE_GPU, remaining, _missing(project))
        project.fair_share += extra
        remaining -= extra


def _missing(project: ProjectNode) -> int:
    """Return the milli-GPU that a project could use beyond its share so far."""
    return min(project.requested, project.limit, project.reach) - project.fair_share


def _divide_by_weight(
    bucket: list[ProjectNode], remaining: int, history_weight: int
) -> tuple[int, list[ProjectNode]]:
    """Divide `remaining` by weight in whole GPUs (S2). Return the rest and its order of recipients.

    Rounds continue while a project needs less than its part. Flooring leaves whole GPUs over; they
    go one by one to the largest remainder of the last round, then the oldest, then by name.
    """
    remainders: list[tuple[int, ProjectNode]] = []
    again = True
    while again and remaining > 0:
        unsatisfied = [project for project in bucket if project.weight and _missing(project)]
        weights = _weights(unsatisfied, history_weight)
        total = sum(weights)
        whole, again, remainders = remaining, False, []
        for project, weight in zip(unsatisfied, weights, strict=True):
            if not weight:
                continue
            gpus, remainder = divmod(whole * weight, total * WHOLE_GPU)
            part, missing = gpus * WHOLE_GPU, _missing(project)
            if missing * total <= whole * weight:
                again = again or missing * total < whole * weight
                part = missing
            else:
                remainders.append((-remainder, project))
            project.fair_share += part
            remaining -= part
    remainders.sort(key=lambda item: (item[0], item[1].age))
    return remaining, [project for _, project in remainders]


def _weights(projects: list[ProjectNode], history_weight: int) -> list[int]:
    """Return the projects' weights in the surplus, reduced by recent usage over their part (S5).

    w <- max(0, w + k (w - u)), with w and u as fractions of the sums of all weights and all usage;
    multiplied by both sums, so that the arithmetic stays in integers.
    """
    used = sum(project.usage for project in projects)
    if not history_weight or not used:
        return [project.weight for project in projects]
    weighed = sum(project.weight for project in projects)
    return [
        max(0, w * used + history_weight * (w * used - project.usage * weighed))
        for project in projects
        for w in [project.weight]
    ]
