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
        "rows": len(cluster.index),
        "scheduler views": len(cluster.index._core_workloads),
        "submissions by idempotency key": len(cluster.index._by_key),
        "started jobs": len(cluster.index._started_jobs),
        "progress files in the cache": len(cluster.executor._progress_files._cache),
        "process handles": len(cluster.executor._reconciler._handles),
        "launching starts": len(cluster.executor._reconciler._launched),
        "running elastic jobs": len(cluster.executor._elastic_relay._running),
        "series of the ledger": len(ledger._by_scope),
        "unwritten windows": sum(len(s.unwritten) for s in ledger._by_workload.values()),
        "unwritten series": len(ledger._integration._changed),
        "segments of the ledger": len(ledger._integration._segments),
        "recorded states": len(month.bookkeeping._states or ()),
        "workloads known to the notifier": len(month.notifier._last_states),
        "idle workloads watched": len(month.platform.idle._watched),
        "cached views": len(month.platform.view_cache),
        "reported allocations": len(month.platform.agent_reports._last_allocated),
        "callers": len(month.platform.caller_limits._owners),
        "streams": len(month.platform.feeds._feeds),
    }
