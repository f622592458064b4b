"""Fair shares: the division of the cluster among projects in one cycle (S1 to S5).

A pure calculation on the accounts of the tree, from capacity and requests; it runs before any
ordering and placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import groups


def set_fair_shares(
    tree: ProjectTree,
    capacity: int,
    history_weight: int = 0,
    by_type: Mapping[str, int] | None = None,
) -> None:
    """Set every account's fair share, level by level: roots share the cluster (S3).

    Children share their parent's fair share; a share is a target, not a cap (S4). With a
    `history_weight`, projects that recently used more than their part yield surplus to their
    siblings (S5). `by_type` is the capacity of each GPU type, for quotas by GPU type (Q4).

    >>> from runai.hub_service.scheduler.model.snapshot import Project
    >>> tree = ProjectTree([Project(name="a", quota=3000), Project(name="b", quota=1000)])
    >>> for account in tree.roots:
    ...     account.requested = 9000
    >>> set_fair_shares(tree, 8000)
    >>> [account.fair_share for account in tree.roots]
    [6000, 2000]
    """
    _divide_level(tree.roots, capacity, history_weight, by_type or {})


def _divide_level(
    siblings: list[ProjectNode], capacity: int, history_weight: int, by_type: Mapping[str, int]
) -> None:
    if any(account.parts for account in siblings):
        for accounts, there in groups(siblings, capacity, by_type):
            _divide(accounts, there, history_weight)
        for account in siblings:
            if account.parts:
                account.fair_share = sum(part.fair_share for part in account.parts)
    else:
        _divide(siblings, capacity, history_weight)
    for account in siblings:
        if account.children and not account.parts:
            _divide_level(account.children, account.fair_share, history_weight, by_type)


def _divide(siblings: list[ProjectNode], capacity: int, history_weight: int) -> None:
    for account in siblings:
        # S1: the guarantee comes first, and is never scaled down when quotas oversubscribe. An
        # unlimited quota is worth the whole capacity.
        quota = capacity if account.is_unlimited else account.quota
        account.fair_share = min(quota, account.limit, account.requested, account.reach)
    left = capacity - sum(account.fair_share for account in siblings)
    buckets: defaultdict[int, list[ProjectNode]] = defaultdict(list)
    for account in siblings:
        buckets[account.priority].append(account)
    floored: list[ProjectNode] = []
    for priority in sorted(buckets, reverse=True):
        left, in_order = _divide_by_weight(buckets[priority], left, history_weight)
        floored += in_order
    for account in floored:
        extra = min(WHOLE_GPU, left, _missing(account))
        account.fair_share += extra
        left -= extra


def _missing(account: ProjectNode) -> int:
    return min(account.requested, account.limit, account.reach) - account.fair_share


def _divide_by_weight(
    bucket: list[ProjectNode], left: int, history_weight: int
) -> tuple[int, list[ProjectNode]]:
    """Divide `left` by weight in whole GPUs (S2). Return the rest and its order of recipients.

    Rounds continue while an account needs less than its part. Flooring leaves whole GPUs over; they
    go one by one to the largest remainder of the last round, then the oldest, then by name.
    """
    remainders: list[tuple[int, ProjectNode]] = []
    again = True
    while again and left > 0:
        wanting = [account for account in bucket if account.weight and _missing(account)]
        weights = _weights(wanting, history_weight)
        total = sum(weights)
        whole, again, remainders = left, False, []
        for account, weight in zip(wanting, weights, strict=True):
            if not weight:
                continue
            gpus, remainder = divmod(whole * weight, total * WHOLE_GPU)
            part, missing = gpus * WHOLE_GPU, _missing(account)
            if missing * total <= whole * weight:
                again = again or missing * total < whole * weight
                part = missing
            else:
                remainders.append((-remainder, account))
            account.fair_share += part
            left -= part
    remainders.sort(key=lambda item: (item[0], item[1].age))
    return left, [account for _, account in remainders]


def _weights(accounts: list[ProjectNode], history_weight: int) -> list[int]:
    """Return the accounts' weights in the surplus, reduced by recent usage over their part (S5).

    w <- max(0, w + k (w - u)), with w and u as fractions of the sums of all weights and all usage;
    multiplied by both sums, so that the arithmetic stays in integers.
    """
    used = sum(account.usage for account in accounts)
    if not history_weight or not used:
        return [account.weight for account in accounts]
    weighed = sum(account.weight for account in accounts)
    return [
        max(0, w * used + history_weight * (w * used - account.usage * weighed))
        for account in accounts
        for w in [account.weight]
    ]
