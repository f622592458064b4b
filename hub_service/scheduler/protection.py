"""Who may not be stopped or moved again so soon (R8).

Knows the minimum run time of projects and the pauses that a job may suffer in an hour. Knows
neither quotas nor places. Asked by `search` for victims and by `consolidate` for what may move.
"""

from __future__ import annotations

from collections.abc import Iterable

from runai.hub_service.scheduler.items import Item, Member, Standing
from runai.hub_service.scheduler.model import Policy

HOUR = 3600


def protected_until(item: Item, members: Iterable[Member], policy: Policy, now: int) -> int | None:
    """Give when a workload may be paused; None where it may be now.

    Elastic surplus is never protected: its workload goes on, so nothing is paused (R8).
    """
    until = max(_has_run(item, members, now), _has_rested(item, policy, now))
    return until if until > now else None


def _has_run(item: Item, members: Iterable[Member], now: int) -> int:
    """Give when the minimum run time of its project, or of one above, is over; now at least."""
    least = max(account.min_runtime for account in item.account.path)
    if not least:
        return now
    starts = [
        member.worker.started
        for member in members
        if member.standing is Standing.RUNNING and member.worker.started is not None
    ]
    return max(starts) + least if starts else now


def _has_rested(item: Item, policy: Policy, now: int) -> int:
    """Give when less than the permitted number of its pauses are younger than an hour."""
    most = policy.max_pauses_per_hour
    if most is None:
        return now
    if not most:
        return now + HOUR
    recent = sorted(time for time in item.workload.pauses if now - HOUR < time <= now)
    return recent[-most] + HOUR if len(recent) >= most else now
