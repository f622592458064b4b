"""Quotas by GPU type: the parts of a project whose guarantee is a table (Q4).

A part is a tree node below its project's. Rules about a project (within its quota, over its share)
apply to the part; only the caps apply to the whole project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from runai.hub_service.scheduler.model.snapshot import Worker, WorkerState, Workload
from runai.hub_service.scheduler.state.project_tree import ANY_OTHER, ProjectNode


class Charge(NamedTuple):
    """Project and devices by which a workload without a place counts (P3, Q4)."""

    project: ProjectNode
    device_mib: int = 0
    """Minimum memory of its devices, if it requests memory: larger ones count for less."""


def types_of(project: ProjectNode, types: Iterable[str]) -> frozenset[str]:
    """Return the GPU types, out of `types`, of a part; an undivided project has all."""
    if project.gpu_type is None:
        return frozenset(types)
    if project.gpu_type != ANY_OTHER:
        return frozenset(types) & {project.gpu_type}
    named = {sibling.gpu_type for sibling in project.siblings} - {ANY_OTHER}
    return frozenset(t for t in types if t not in named)


def candidates(
    project: ProjectNode, workload: Workload, type_of: Mapping[str, str]
) -> list[ProjectNode]:
    """Return the parts that a workload may be charged to, "any other" first; never empty.

    If it names GPU types, the parts are in their order instead (P5). `type_of` is the GPU type of
    each node. A placed workload is charged where it is, and a gang to one part. A workload that may
    use no node of any part gets "any other", and finds no node there.
    """
    parts = sorted(project.parts, key=lambda part: (part.gpu_type != ANY_OTHER, part.gpu_type))
    for worker in workload.workers:
        worker_gpu_type = (
            None if worker.state is WorkerState.PENDING else type_of.get(worker.node or "")
        )
        if worker_gpu_type is not None:
            return [part for part in parts if worker_gpu_type in types_of(part, (worker_gpu_type,))]
    if not any(map(_requests_gpus, workload.workers)):
        return parts[:1]
    types = set(type_of.values())
    allowed_parts = [
        part
        for part, part_types in [(part, types_of(part, types)) for part in parts]
        if all(_has_type_for(worker, part_types) for worker in workload.workers)
    ]
    preferred = next((w.gpu_types for w in workload.workers if w.gpu_types), ())
    if len(preferred) > 1:
        rank = {gpu_type: place for place, gpu_type in reversed([*enumerate(preferred)])}
        allowed_parts.sort(key=lambda part: min(rank[t] for t in types_of(part, preferred)))
    return allowed_parts or parts[:1]


def within(project: ProjectNode, worker: Worker, types: Iterable[str]) -> Worker:
    """Return the worker's request restricted to nodes of the part's GPU types."""
    if project.gpu_type is None or not _requests_gpus(worker):
        return worker
    allowed = types_of(project, types)
    if worker.gpu_types:
        allowed &= frozenset(worker.gpu_types)
    if not allowed:
        return replace(worker, nodes=())
    return replace(worker, gpu_types=tuple(sorted(allowed)))


def _has_type_for(worker: Worker, types: frozenset[str]) -> bool:
    """Return True if a worker may use one of these GPU types, or requests no GPU."""
    allowed = types.intersection(worker.gpu_types) if worker.gpu_types else types
    return bool(allowed) or not _requests_gpus(worker)


def _requests_gpus(worker: Worker) -> bool:
    return bool(worker.gpus or worker.gpu_memory_mib)


def reset_and_group(
    siblings: Sequence[ProjectNode], capacity: int, by_type: Mapping[str, int]
) -> list[tuple[list[ProjectNode], int]]:
    """Reset the shares of siblings; return the groups that share GPUs, with milli-GPU (S2).

    GPU types that one quota covers together belong to one group. `capacity` is the total of these
    siblings, `by_type` the cluster's capacity of each type. Each fair share becomes 0, and `reach`
    the capacity of the project's types, beyond which a share is of no use.
    """
    buckets = [part for project in siblings for part in project.parts or (project,)]
    named = {part.gpu_type for part in buckets} - {None, ANY_OTHER}
    # All types without a quota of their own count as one type.
    capacity_of = {ANY_OTHER: sum(milli for t, milli in by_type.items() if t not in named)}
    capacity_of.update((t, by_type.get(t, 0)) for t in named if t is not None)
    grouped: list[tuple[frozenset[str], list[ProjectNode]]] = []
    for bucket in buckets:
        types = types_of(bucket, capacity_of)
        bucket.reach = sum(capacity_of[t] for t in types)
        bucket.fair_share = 0
        if not bucket.requested:
            continue
        merged_projects = [bucket]
        separate_groups = []
        for group_types, group_projects in grouped:
            if types & group_types:
                types, merged_projects = types | group_types, group_projects + merged_projects
            else:
                separate_groups.append((group_types, group_projects))
        grouped = [*separate_groups, (types, merged_projects)]
    groups = []
    for types, group_projects in sorted(grouped, key=lambda group: min(group[0])):
        group_capacity = min(capacity, sum(capacity_of[t] for t in types))
        capacity -= group_capacity
        groups.append((sorted(group_projects, key=lambda project: project.age), group_capacity))
    return groups
