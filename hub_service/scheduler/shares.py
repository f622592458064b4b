"""Fair shares: how the cluster is divided among projects this cycle (S1 to S4).

Knows the division and nothing of nodes or workloads: capacity and requests are given. Called once
a cycle by `cycle`, before any order or placement; a pure calculation on the accounts of the tree.
"""

from __future__ import annotations

from collections import defaultdict

from runai.hub_service.scheduler.quantity import WHOLE_GPU
from runai.hub_service.scheduler.tree import Account, ProjectTree


def set_fair_shares(tree: ProjectTree, capacity: int) -> None:
    """Give every account its fair share, level by level: roots share the cluster (S3).

    Children share their parent's fair share; a share is a target, not a cap (S4).

    >>> from runai.hub_service.scheduler.model import Project
    >>> tree = ProjectTree([Project(name="a", quota=3000), Project(name="b", quota=1000)])
    >>> for account in tree.roots:
    ...     account.requested = 9000
    >>> set_fair_shares(tree, 8000)
    >>> [account.fair_share for account in tree.roots]
    [6000, 2000]
    """
    _divide(tree.roots, capacity)


def _divide(siblings: list[Account], capacity: int) -> None:
    for account in siblings:
        # S1: the guarantee comes first, and is never scaled down when quotas oversubscribe.
        # An unlimited one is worth what there is to share.
        quota = max(0, capacity) if account.is_unlimited else account.quota
        account.fair_share = min(quota, account.limit, account.requested)
    left = capacity - sum(account.fair_share for account in siblings)
    buckets: defaultdict[int, list[Account]] = defaultdict(list)
    for account in siblings:
        buckets[account.priority].append(account)
    floored: list[Account] = []
    for priority in sorted(buckets, reverse=True):
        left, in_order = _divide_by_weight(buckets[priority], left)
        floored += in_order
    for account in floored:
        extra = max(0, min(WHOLE_GPU, left, _missing(account)))
        account.fair_share += extra
        left -= extra
    for account in siblings:
        if account.children:
            _divide(account.children, account.fair_share)


def _missing(account: Account) -> int:
    return max(0, min(account.requested, account.limit) - account.fair_share)


def _divide_by_weight(bucket: list[Account], left: int) -> tuple[int, list[Account]]:
    """Divide what is left by weight in whole GPUs (S2); give the rest, and who is due of it.

    Rounds go on while someone is satisfied with less than its part. Due of what flooring leaves,
    one GPU each, is the largest remainder of the last round, then the oldest, then by name.
    """
    remainders: list[tuple[int, Account]] = []
    again = True
    while again and left > 0:
        wanting = [account for account in bucket if account.weight and _missing(account)]
        total = sum(account.weight for account in wanting)
        whole, again, remainders = left, False, []
        for account in wanting:
            gpus, remainder = divmod(whole * account.weight, total * WHOLE_GPU)
            part, missing = gpus * WHOLE_GPU, _missing(account)
            if missing * total <= whole * account.weight:
                again = again or missing * total < whole * account.weight
                part = missing
            else:
                remainders.append((-remainder, account))
            account.fair_share += part
            left -= part
    remainders.sort(key=lambda item: (item[0], item[1].age))
    return left, [account for _, account in remainders]
