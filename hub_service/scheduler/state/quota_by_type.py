"""Quotas by GPU type: the parts of a project whose guarantee is a table (Q4).

Knows which types a part stands for, what of a cluster siblings share together, and which of its
nodes a worker of a part may use. A part is an account below its project's: whatever the rules ask
of a project (within its quota, over its share) is asked of the part, and of the whole only its
caps. `tree` makes the parts, `shares` divides by them, `state` books on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.scheduler.model.snapshot import Worker, WorkerState, Workload
from runai.hub_service.scheduler.state.project_tree import ANY_OTHER, Account


def types_of(part: Account, types: Iterable[str]) -> frozenset[str]:
    """Give which of these GPU types a part stands for; an undivided project stands for all."""
    if part.gpu_type is None:
        return frozenset(types)
    if part.gpu_type != ANY_OTHER:
        return frozenset(types) & {part.gpu_type}
    named = {sibling.gpu_type for sibling in part.siblings} - {ANY_OTHER}
    return frozenset(t for t in types if t not in named)


def candidates(project: Account, workload: Workload, type_of: Mapping[str, str]) -> list[Account]:
    """Give the parts that a workload may be booked on, "any other" first; never none.

    `type_of` names each node's GPU type. Who is somewhere is booked where it is; a gang stays in
    one part. Who may use no node of any part is booked on "any other" and finds no node there.
    """
    parts = sorted(project.parts, key=lambda part: (part.gpu_type != ANY_OTHER, part.gpu_type))
    for worker in workload.workers:
        there = None if worker.state is WorkerState.PENDING else type_of.get(worker.node or "")
        if there is not None:
            return [part for part in parts if there in types_of(part, (there,))]
    if not any(map(_asks, workload.workers)):
        return parts[:1]
    types = set(type_of.values())
    found = [
        part
        for part in parts
        for allowed in [types_of(part, types)]
        if all(
            not _asks(w) or (allowed.intersection(w.gpu_types) if w.gpu_types else allowed)
            for w in workload.workers
        )
    ]
    return found or parts[:1]


def within(part: Account, worker: Worker, types: Iterable[str]) -> Worker:
    """Give what a worker asks for when it is booked on a part: nodes of the part's types only."""
    if part.gpu_type is None or not _asks(worker):
        return worker
    allowed = types_of(part, types)
    if worker.gpu_types:
        allowed &= frozenset(worker.gpu_types)
    if not allowed:
        return replace(worker, nodes=())
    return replace(worker, gpu_types=tuple(sorted(allowed)))


def _asks(worker: Worker) -> bool:
    return bool(worker.gpus or worker.gpu_memory_mib)


def groups(
    siblings: Sequence[Account], capacity: int, by_type: Mapping[str, int]
) -> list[tuple[list[Account], int]]:
    """Say who shares how much: types that somebody's quota does not tell apart go together (S2).

    `capacity` is what these siblings share in all, `by_type` what the cluster has of each type.
    Sets how far each can reach: a share is of no use beyond what there is of its types.
    """
    buckets = [part for account in siblings for part in account.parts or (account,)]
    named = {part.gpu_type for part in buckets} - {None, ANY_OTHER}
    # What nobody names is one type to everybody.
    there = {ANY_OTHER: sum(milli for t, milli in by_type.items() if t not in named)}
    there.update((t, by_type.get(t, 0)) for t in named if t is not None)
    grouped: list[tuple[frozenset[str], list[Account]]] = []
    for bucket in buckets:
        types = types_of(bucket, there)
        bucket.reach = sum(there[t] for t in types)
        bucket.fair_share = 0
        if not bucket.requested:
            continue
        together = [bucket]
        apart = []
        for others, accounts in grouped:
            if types & others:
                types, together = types | others, accounts + together
            else:
                apart.append((others, accounts))
        grouped = [*apart, (types, together)]
    shared = []
    for types, accounts in sorted(grouped, key=lambda group: min(group[0])):
        part = min(capacity, sum(there[t] for t in types))
        capacity -= part
        shared.append((sorted(accounts, key=lambda account: account.age), part))
    return shared
