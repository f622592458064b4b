"""Comparison of the ledger's sums with the jobs' own records and the cluster's history.

The ledger holds history only. A killed service loses its unwritten usage (up to 10 s), no usage is
counted while it is down, and after its clock goes back no time is counted twice. So the ledger
may have less than the run time, by no more than that, and never more than was held.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crashes.testbed import Testbed
from runai.hub_service.client import Client
from waiting import eventually

UNWRITTEN_S = 10.0
"""Usage that a killed service had not written."""

TOLERANCE_S = 2.0
"""Tolerance: starts and ends are reported within a cycle."""

HISTORY_SPAN = timedelta(days=1)
HOUR_S = 3600
END_KINDS = {"exited", "lost", "paused", "retrying", "suspended", "succeeded", "failed"}
"""Kinds of history events after which a workload holds no devices."""


def wrong_sums(
    testbed: Testbed, admin: Client, uncounted_s: float, reserved: Mapping[str, float]
) -> list[str]:
    """Return a sentence for each wrong sum of the ledger.

    `uncounted_s` may be missing: the service was away, or its clock wrong. `reserved` are
    GPU-seconds that workloads held while they waited for the rest: the ledger counts them, the
    stored history does not have them.
    """
    # A range ends with a whole second: usage in the current second is in no sum before the next
    # second, but already counts for the workloads.
    this_second = int(time.time())
    eventually(lambda: int(time.time()) > this_second)
    since, until = datetime.now(UTC) - HISTORY_SPAN, datetime.now(UTC) + HISTORY_SPAN
    past = admin.history(since)
    ledger_gpu_s = {workload.id: workload.held_s * workload.gpus for workload in past}
    total = sum(ledger_gpu_s.values())
    wrong = []
    for kind in ("project", "user", "node"):
        sums = admin.usage_by(kind, since=since, until=until)
        amount = 3600 * sum(usage.allocated_gpu_hours for usage in sums)
        # Usage counted before a clock went back is in no range that ends now.
        if abs(amount - total) > TOLERANCE_S and not math.isinf(uncounted_s):
            wrong.append(f"the ledger's {kind}s have {amount:.1f} GPU-s, its workloads {total:.1f}")
    witnessed_gpu_s, stored_gpu_s = witnessed(testbed.witness), stored_spans(testbed.database)
    for name in sorted(witnessed_gpu_s.keys() | ledger_gpu_s.keys()):
        ledger_amount, upper_bound = (
            ledger_gpu_s.get(name, 0.0),
            stored_gpu_s.get(name, 0.0) + reserved.get(name, 0.0),
        )
        if ledger_amount > upper_bound + TOLERANCE_S:
            wrong.append(
                f"the ledger has {ledger_amount:.1f} GPU-s of {name}, which held {upper_bound:.1f}"
            )
        if ledger_amount < witnessed_gpu_s.get(name, 0.0) - uncounted_s - TOLERANCE_S:
            wrong.append(
                f"the ledger has {ledger_amount:.1f} GPU-s of {name},"
                f" which ran {witnessed_gpu_s[name]:.1f}"
            )
    return wrong


def witnessed(witness: Path) -> dict[str, float]:
    """Return the GPU-seconds that each job recorded of its own runs."""
    totals: dict[str, float] = {}
    for path in witness.glob("ran/*"):
        if words := path.read_text().split():
            name = path.name.split(".", 1)[0].replace("+", "/")
            totals[name] = totals.get(name, 0.0) + float(words[0]) * float(words[1])
    return totals


def stored_spans(database: Path) -> dict[str, float]:
    """Return the GPU-seconds for which each workload held devices, by its stored history.

    The history has the service's clock: a workload that ran while it went back an hour held its
    devices an hour longer than the difference of the two times.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        rows = opened.execute("SELECT id, json_extract(spec, '$.gpus') FROM workloads").fetchall()
        lines = opened.execute("SELECT workload, at, kind FROM history ORDER BY number").fetchall()
    gpus = {name: milli / 1000 for name, milli in rows}
    since: dict[str, float] = {}
    totals: dict[str, float] = {}
    for name, at, kind in lines:
        if kind == "starting":
            since[name] = at
        elif kind in END_KINDS and name in since:
            span = at - since.pop(name)
            span += HOUR_S if span < 0 else 0
            totals[name] = totals.get(name, 0.0) + span * gpus[name]
    return totals
