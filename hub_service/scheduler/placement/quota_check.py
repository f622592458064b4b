"""Caps of projects: limit, build quota and devices that are never lent (Q1 to Q3).

They are checked at the project and at every ancestor before every placement. `oversubscribed`
reports guarantees beyond the capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, count_text
from runai.hub_service.scheduler.model.snapshot import Node, Snapshot, WaitCode
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import (
    ANY_OTHER,
    UNLIMITED,
    ProjectNode,
    ProjectTree,
    tree_of,
)


class Block(NamedTuple):
    """Reason why a workload is blocked, before it is formatted for users."""

    code: WaitCode
    rule: str
    account: ProjectNode | None = None
    detail: str = ""


def cap_in_the_way(unit: PodSet) -> Block | None:
    """Return the first cap that a unit would break."""
    return cap_on(unit.item, unit.demand, is_guaranteed=unit.is_guaranteed)


def cap_on(item: PlannedWorkload, demand: int, *, is_guaranteed: bool) -> Block | None:
    """Return the first cap that `demand` would break.

    In this order at each level: limit (Q3), build quota (Q1), the quota of guaranteed workers (E4).
    """
    if not demand:
        return None
    for account in item.account.path:
        if account.allocated + demand > account.limit:
            return Block("over_limit", "Q3", account)
        if item.is_fixed and account.build + demand > account.build_quota:
            return Block("over_build_quota", "Q1", account)
    if is_guaranteed:
        for account in quota_path(item):
            if account.allocated + demand > account.quota:
                return Block("over_share", "E4", account)
    return None


def quota_path(item: PlannedWorkload) -> list[ProjectNode]:
    """Return the accounts whose quotas a workload is judged by; of a table its part (Q4)."""
    path = item.account.path
    return [path[0] if account.parts else account for account in path]


def still_over(item: PlannedWorkload) -> set[ProjectNode]:
    """Return the projects over their limit until stopping workers have ended (Q3).

    Called after a trial placement: it decides between a start now and a reservation.
    """
    return {a for a in item.account.path if a.leaving and a.allocated + a.leaving > a.limit}


def reserved_for_others(state: State, item: PlannedWorkload) -> int:
    """Return the milli-GPU that must stay idle for other projects (Q2)."""
    return sum(_reserved_below(root, item.account.path) for root in state.tree.roots)


def _reserved_below(account: ProjectNode, mine: tuple[ProjectNode, ...]) -> int:
    inside = sum(_reserved_below(child, mine) for child in account.children)
    return inside if account in mine else max(inside, account.never_lent - account.allocated)


def leaves_what_is_never_lent(state: State, item: PlannedWorkload) -> bool:
    """Return True if enough stays idle for the projects that never lend their GPUs (Q2).

    Called after a trial placement; whole GPUs must stay whole.
    """
    if not state.tree.holders:
        return True
    held = reserved_for_others(state, item)
    room = state.later
    return room.free_milli >= held and room.idle_total >= held // WHOLE_GPU


def oversubscribed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return sentences on quotas and build quotas that exceed the capacity (S1, Q1).

    Oversubscription is allowed and nothing is scaled down, but then not every guarantee can be met
    at the same time.
    """
    tree = tree_of(snapshot)
    capacity = _usable(snapshot.nodes) * WHOLE_GPU
    there = f"the cluster has {count_text(capacity)}"
    remarks = _excess("the quotas", [a.quota for a in tree.roots], capacity, there)
    remarks += _excess_by_type(snapshot, tree)
    builds = [a.build_quota for a in tree.roots]
    remarks += _excess("the build quotas", builds, capacity, there)
    for name, account in sorted(tree.accounts.items()):
        quotas = [child.quota for child in account.children]
        own = f"{name} itself has {count_text(account.quota)}"
        remarks += _excess(f"the quotas inside {name}", quotas, account.quota, own)
    return tuple(remarks)


def _excess_by_type(snapshot: Snapshot, tree: ProjectTree) -> list[str]:
    """Return sentences on quotas by GPU type that exceed its capacity (Q4)."""
    promised: dict[str, list[int]] = {}
    for account in tree.accounts.values():
        for part in account.parts:
            if part.gpu_type not in {None, ANY_OTHER}:
                promised.setdefault(str(part.gpu_type), []).append(part.quota)
    remarks = []
    for gpu_type, quotas in sorted(promised.items()):
        there = _usable(n for n in snapshot.nodes if n.gpu_type == gpu_type) * WHOLE_GPU
        whose = f"the cluster has {count_text(there)} of them"
        remarks += _excess(f"the quotas of {gpu_type}", quotas, there, whose)
    return remarks


def _usable(nodes: Iterable[Node]) -> int:
    return sum(n.usable_devices for n in nodes if n.schedulable)


def _excess(what: str, promised: list[int], there: int, whose: str) -> list[str]:
    total = sum(quota for quota in promised if quota < UNLIMITED)
    return [f"{what} add up to {count_text(total)}, but {whose}"] if total > there else []
