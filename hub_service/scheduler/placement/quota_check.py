"""Caps of projects: limit, build quota and devices that are never lent (Q1 to Q3).

They are checked at the project and at every ancestor before every placement. `oversubscribed`
reports guarantees beyond the capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, count_text
from runai.hub_service.scheduler.model.snapshot import Node, Snapshot, WaitCode
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planned_workloads import PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import (
    ANY_OTHER,
    UNLIMITED,
    ProjectNode,
    ProjectTree,
    tree_of,
)


class BlockReason(NamedTuple):
    """Reason why a workload is blocked, before it is formatted for users."""

    code: WaitCode
    rule: str
    project: ProjectNode | None = None
    detail: str = ""


def first_cap_exceeded(pod_set: PodSet) -> BlockReason | None:
    """Return the first cap that a pod set would break."""
    return cap_on(pod_set.planned, pod_set.demand, is_guaranteed=pod_set.is_guaranteed)


def cap_on(planned: PlannedWorkload, demand: int, *, is_guaranteed: bool) -> BlockReason | None:
    """Return the first cap that `demand` would break.

    In this order at each level: limit (Q3), build quota (Q1), the quota of guaranteed workers (E4).
    """
    if not demand:
        return None
    for project in planned.project.path:
        if project.allocated + demand > project.limit:
            return BlockReason("over_limit", "Q3", project)
        if planned.is_fixed and project.build + demand > project.build_quota:
            return BlockReason("over_build_quota", "Q1", project)
    if is_guaranteed:
        for project in quota_path(planned):
            if project.allocated + demand > project.quota:
                return BlockReason("over_share", "E4", project)
    return None


def quota_path(planned: PlannedWorkload) -> list[ProjectNode]:
    """Return the projects with the quotas of a workload; of a table its part (Q4)."""
    path = planned.project.path
    return [path[0] if project.parts else project for project in path]


def projects_over_limit(planned: PlannedWorkload) -> set[ProjectNode]:
    """Return the projects over their limit until stopping workers have ended (Q3).

    Called after a trial placement: it decides between a start now and a reservation.
    """
    return {
        a for a in planned.project.path if a.terminating and a.allocated + a.terminating > a.limit
    }


def reserved_for_other_projects(state: PlanningState, planned: PlannedWorkload) -> int:
    """Return the milli-GPU that must stay idle for other projects (Q2)."""
    return sum(_reserved_below(root, planned.project.path) for root in state.tree.roots)


def _reserved_below(project: ProjectNode, own_path: tuple[ProjectNode, ...]) -> int:
    """Return the milli-GPU that a project and its descendants keep from the own path (Q2)."""
    inside = sum(_reserved_below(child, own_path) for child in project.children)
    return inside if project in own_path else max(inside, project.never_lent - project.allocated)


def respects_never_lent(state: PlanningState, planned: PlannedWorkload) -> bool:
    """Return True if enough stays idle for the projects that never lend their GPUs (Q2).

    Called after a trial placement; whole GPUs must stay whole.
    """
    if not state.tree.holders:
        return True
    reserved = reserved_for_other_projects(state, planned)
    capacity = state.later
    return capacity.free_milli >= reserved and capacity.idle_total >= reserved // WHOLE_GPU


def oversubscribed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return sentences on quotas and build quotas that exceed the capacity (S1, Q1).

    Oversubscription is allowed and nothing is scaled down, but then not every guarantee can be met
    at the same time.
    """
    tree = tree_of(snapshot)
    capacity = _usable_devices(snapshot.nodes) * WHOLE_GPU
    capacity_text = f"the cluster has {count_text(capacity)}"
    remarks = _excess("the quotas", [a.quota for a in tree.roots], capacity, capacity_text)
    remarks += _excess_by_type(snapshot, tree)
    builds = [a.build_quota for a in tree.roots]
    remarks += _excess("the build quotas", builds, capacity, capacity_text)
    for name, project in sorted(tree.projects.items()):
        quotas = [child.quota for child in project.children]
        own = f"{name} itself has {count_text(project.quota)}"
        remarks += _excess(f"the quotas inside {name}", quotas, project.quota, own)
    return tuple(remarks)


def _excess_by_type(snapshot: Snapshot, tree: ProjectTree) -> list[str]:
    """Return sentences on quotas by GPU type that exceed its capacity (Q4)."""
    promised: dict[str, list[int]] = {}
    for project in tree.projects.values():
        for part in project.parts:
            if part.gpu_type not in {None, ANY_OTHER}:
                promised.setdefault(str(part.gpu_type), []).append(part.quota)
    remarks = []
    for gpu_type, quotas in sorted(promised.items()):
        capacity = _usable_devices(n for n in snapshot.nodes if n.gpu_type == gpu_type) * WHOLE_GPU
        capacity_text = f"the cluster has {count_text(capacity)} of them"
        remarks += _excess(f"the quotas of {gpu_type}", quotas, capacity, capacity_text)
    return remarks


def _usable_devices(nodes: Iterable[Node]) -> int:
    return sum(n.usable_devices for n in nodes if n.schedulable)


def _excess(what: str, promised: list[int], capacity: int, capacity_text: str) -> list[str]:
    """Return a sentence if promised milli-GPU exceed the capacity, else nothing."""
    total = sum(quota for quota in promised if quota < UNLIMITED)
    return (
        [f"{what} add up to {count_text(total)}, but {capacity_text}"] if total > capacity else []
    )
