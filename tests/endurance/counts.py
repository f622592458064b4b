"""Counts of the objects in a process: the platform's own by kind, all other kinds together.

Memory in MiB depends on the allocator and the machine as well, so objects are counted.
"""

from __future__ import annotations

import gc
from collections import Counter

from endurance.month import Month


def live_objects() -> Counter[str]:
    """Count the garbage collector's objects: our own by kind, the rest as one number."""
    gc.collect()
    found: Counter[str] = Counter()
    for live_object in gc.get_objects():
        kind = type(live_object)
        module = str(kind.__module__)
        found[f"{module}.{kind.__qualname__}" if module.startswith("runai.") else "others"] += 1
    return found


def sizes(month: Month) -> dict[str, int]:
    """Return the size of every collection that is keyed by workloads."""
    cluster, ledger = month.cluster, month.ledger
    return {
        "rows": len(cluster._index),
        "drawn for the core": len(cluster._index._core_workloads),
        "submissions by their keys": len(cluster._index._by_key),
        "begun": len(cluster._index._started_jobs),
        "progress read": len(cluster._progress_files._cache),
        "processes tended to": len(cluster._reconciler._handles),
        "starts under way": len(cluster._reconciler._launched),
        "elastic jobs listened to": len(cluster._elastic_relay._running),
        "series of the ledger": len(ledger._by_scope),
        "windows to be written": sum(len(s.unwritten) for s in ledger._by_workload.values()),
        "series to be written": len(ledger._integration._changed),
        "segments of the ledger": len(ledger._integration._segments),
        "states written down": len(month.bookkeeping._states or ()),
        "workloads seen by the notifier": len(month.notifier._last_states),
        "idle workloads watched": len(month.platform.idle._watched),
        "views drawn": len(month.platform.view_cache),
        "holders reported": len(month.platform.agent_reports._last_allocated),
        "callers": len(month.platform.caller_limits._owners),
        "streams": len(month.platform.feeds._feeds),
    }
