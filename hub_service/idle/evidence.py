"""Say why: the numbers of a decision about idle GPUs as half a sentence that can be disputed.

Pure wording. Called by `watch`.
"""

from runai.hub_service.clusters.records import WorkloadRecord
from runai.hub_service.idle.machine import Action
from runai.hub_service.ledger import Totals
from runai.hub_service.scheduler.quantity import count_text


def evidence(record: WorkloadRecord, action: Action, totals: Totals) -> str:
    """Return what was measured: how long it was idle, and what it used of what it held."""
    held = count_text(record.allocated)
    if action.never_used:
        first = f"no program has used its {held} since it got it, for {minutes(action.limit_s)}"
    else:
        first = f"it has kept its {held} less than 1 % busy for {minutes(action.idle_s)}"
    used, allocated = totals.used_s / 3600, totals.allocated_s / 3600
    return f"{first} ({used:.2f} of {allocated:.2f} GPU-hours used so far)"


def minutes(seconds: float) -> str:
    """Return a time in whole minutes, or seconds below one.

    >>> minutes(1805), minutes(42)
    ('30 min', '42 s')
    """
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
