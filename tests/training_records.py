"""Records of the ranks of `recorded_training`, and the updates that they may make.

Imports no framework at its top: tests that only read records are collected without one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def allow(directory: Path, updates: int) -> None:
    """Allow the workers of this directory `updates` updates, counted from the first."""
    temporary = directory / ".allowed"
    temporary.write_text(str(updates))
    temporary.replace(directory / "allowed")


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Return what all ranks recorded; a line that was cut off by a kill is left out."""
    found = []
    for path in sorted((directory / "records").glob("*.jsonl")):
        lines = path.read_text().split("\n")
        found += [json.loads(line) for line in lines if line.endswith("}")]
    return found


def reconcile(records: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the samples of each update in its last attempt, over all ranks."""
    last: dict[int, int] = {}
    for record in records:
        last[record["update"]] = max(last.get(record["update"], 0), record["gen"])
    history: dict[int, list[int]] = {}
    for record in records:
        if record["gen"] == last[record["update"]]:
            history.setdefault(record["update"], []).extend(record["indices"])
    return {update: sorted(indices) for update, indices in sorted(history.items())}


def expected_history(epochs: int) -> dict[int, list[int]]:
    """Return the samples that each update must use, each of an epoch's samples once."""
    from elastic_trainings import GLOBAL_BATCH, SAMPLES, SEED
    from runai.elastic.torch.loading.samples import order_of

    updates = -(-SAMPLES // GLOBAL_BATCH)
    history = {}
    for epoch in range(epochs):
        order = order_of(SAMPLES, seed=SEED, epoch=epoch, shuffle=True)
        for number, part in enumerate(order.split(GLOBAL_BATCH)):
            history[epoch * updates + number] = sorted(part.tolist())
    return history
