"""Write rows until killed, again and again, and check the database after each kill.

`python killed_writer.py cluster|ledger PLACE KILLS SEED`: a child stores workloads with
their history, or batches of the ledger, as fast as it can, and prints the
number of each; the parent sends SIGKILL at a random moment. Prints the errors found.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.user_actions import submitted
from runai.hub_service.ledger.store import Event, Forgotten, LedgerStore, WriteBatch
from runai.hub_service.ledger.totals import Scope, Series, Totals
from runai.hub_service.model.records import HistoryEvent, WorkloadSpec
from runai.hub_service.sqlite.files import invalid_reason

Writes = Callable[[Path, int, int], None]
Reads = Callable[[Path], tuple[list[int], bool]]


def write_cluster(path: Path, write_fd: int, first: int) -> None:
    """Store workloads one by one, each with a line of history, and change the latest ones."""
    store = SqliteStore(path)
    for number in count(first):
        spec = WorkloadSpec("vision", f"exp-{number}", "ana", "job", ("t",), source="#" * 3000)
        row = submitted(spec, now=1.0, checkpoint_dir="", log_dir="").row
        assert row is not None
        changed = [replace(old, losses=old.losses + 1) for old in [*store.rows()][-3:]]
        store.save([row, *changed], events=[(row.id, HistoryEvent(1.0, "queued", "submitted"))])
        os.write(write_fd, f"{number}\n".encode())


def read_cluster(path: Path) -> tuple[list[int], bool]:
    """Return the numbers of the stored workloads, and whether each is complete."""
    store = SqliteStore(path)
    names = [row.spec.name for row in store.rows()]
    store.close()
    [lines] = query_column(path, "SELECT count(*) FROM history")
    return [int(name.removeprefix("exp-")) for name in names], lines == len(names)


def write_ledger(path: Path, write_fd: int, first: int) -> None:
    """Store one batch after the other: a series, three windows of it, and an event."""
    store = LedgerStore(path)
    for number in count(first):
        workload = f"vision/exp-{number}"
        series = Series(Scope("workload", "vision", "ana", workload), float(number))
        store.write(
            WriteBatch(
                amounts={series: dict.fromkeys((10, 20, 30), Totals(1.0))},
                forgotten=[Forgotten(f"vision/exp-{number - 1}", float(number), None)],
                events=[Event(float(number), workload, "queued", "#" * 3000)],
            )
        )
        os.write(write_fd, f"{number}\n".encode())


def read_ledger(path: Path) -> tuple[list[int], bool]:
    """Return the stored series, and whether each has its complete batch."""
    store = LedgerStore(path)
    open_series = [series.opened for series in store.open()]
    store.close()
    numbers = query_column(path, "SELECT opened FROM series ORDER BY id")
    series_count = len(numbers)
    (events,) = query_column(path, "SELECT count(*) FROM events")
    samples = query_column(path, "SELECT count(*) FROM samples WHERE held_s = 1 AND level = 10")
    durations = query_column(path, "SELECT held_s FROM series")
    is_complete = (
        events == series_count
        and samples == [3 * series_count]
        and durations == [3.0] * series_count
    )
    return list(map(int, numbers)), is_complete and open_series == [series_count - 1][
        : series_count > 0
    ]


def query_column(path: Path, sql: str) -> list[int]:
    """Return the first column of a query's result."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(sql)]


KINDS: dict[str, tuple[type[SqliteStore | LedgerStore], Writes, Reads]] = {
    "cluster": (SqliteStore, write_cluster, read_cluster),
    "ledger": (LedgerStore, write_ledger, read_ledger),
}


def main() -> int:
    """Kill the requested number of writers; return the number of errors found."""
    kind, place, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    opened, write, read = KINDS[kind]
    dice, path, acknowledged, wrong = random.Random(seed), place / f"{kind}.sqlite", -1, 0
    opened(path).close()
    for _ in range(kills):
        read_fd, write_fd = os.pipe()
        child = os.fork()
        if child == 0:
            write(path, write_fd, acknowledged + 1)
        os.close(write_fd)
        time.sleep(dice.uniform(0.005, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_fd) as acknowledgements:
            acknowledged = max([acknowledged, *map(int, acknowledgements.read().split())])
        if corruption := invalid_reason(path):
            print("broken:", corruption)
            wrong += 1
        numbers, is_complete = read(path)
        if len(numbers) <= acknowledged or numbers != [*range(len(numbers))] or not is_complete:
            print(f"{acknowledged + 1} acknowledged, {len(numbers)} found, whole: {is_complete}")
            wrong += 1
        acknowledged = len(numbers) - 1
    print(f"{kills} kills, {acknowledged + 1} stored")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
