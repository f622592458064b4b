"""Invariants during and after the faults, checked by reading the platform's database.

The rules are the same as for the hours in virtual time (`faults.invariants`), on `cluster.sqlite`
as another program reads it; the jobs' own records are in their witness folder.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil

from crashes.testbed import Testbed
from faults.invariants import over_granted, over_limits, owed_projects, unexplained
from runai.hub_service.clusters.local.store import cluster_sqlite
from runai.hub_service.model.records import ProjectSpec, WorkloadRecord

CHECK_EVERY_S = 0.25
OWED_FOR_CYCLES = 3
"""A project gets its owed GPUs within a cycle; one more may have been under way."""


class DatabaseChecker(threading.Thread):
    """Thread that checks the database continuously; `violations` has a sentence per violation."""

    def __init__(self, testbed: Testbed) -> None:
        super().__init__(name="database checker")
        self._testbed = testbed
        self._stop_requested = threading.Event()
        self._owed: dict[str, int] = {}
        """Cycle in which each project was first seen to be owed GPUs."""
        self._cycle = 0
        self.is_calm = threading.Event()
        """Set while nothing is broken, so that projects must get the GPUs they are owed."""
        self.checks = 0
        self.violations: list[str] = []
        self.reserved: dict[str, float] = {}
        """Upper bound of each workload's reserved GPU-seconds: the history does not have them."""
        self._reserves: dict[str, float] = {}
        self._checked_at = time.monotonic()

    def run(self) -> None:
        while not self._stop_requested.wait(CHECK_EVERY_S):
            self.check()

    def end(self) -> None:
        """Stop the thread and check a last time."""
        self._stop_requested.set()
        self.join()
        self.check()

    def check(self) -> None:
        """Check once; an unreadable database is read the next time."""
        cycle, calm = self._testbed.cycles(), self.is_calm.is_set()
        try:
            records, projects = read_stored(self._testbed.database)
        except sqlite3.Error:
            return
        self.checks += 1
        self._count_reserved(records)
        for sentence in (
            *over_granted(records),
            *over_limits(records, projects, {}),
            *unexplained(records, ()),
        ):
            self._report(sentence)
        if cycle is None or cycle < self._cycle or not calm or not self.is_calm.is_set():
            self._owed = {}
        self._cycle = cycle or 0
        if cycle is not None and calm:
            owed = set(owed_projects(records, projects))
            self._owed = {name: self._owed.get(name, cycle) for name in owed}
            for name, since in self._owed.items():
                if cycle - since > OWED_FOR_CYCLES:
                    self._report(f"{name} is owed GPUs for more than {OWED_FOR_CYCLES} cycles")

    def _count_reserved(self, records: Sequence[WorkloadRecord]) -> None:
        before, self._reserves = self._reserves, {r.id: gpus_reserved(r) for r in records}
        since, self._checked_at = self._checked_at, time.monotonic()
        for name, gpus in self._reserves.items():
            if peak_gpus := max(gpus, before.get(name, 0.0)):
                lasted = peak_gpus * (self._checked_at - since)
                self.reserved[name] = self.reserved.get(name, 0.0) + lasted

    def _report(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)


def gpus_reserved(record: WorkloadRecord) -> float:
    """Return the GPUs reserved for a workload's workers that wait for the rest."""
    waiting = (worker for worker in record.workers if worker.state == "reserved")
    return sum(share.gpus for worker in waiting for share in worker.devices) / 1000


def read_stored(database: Path) -> tuple[list[WorkloadRecord], list[ProjectSpec]]:
    """Read workloads and projects from the platform's database.

    Raises:
        sqlite3.Error: the database cannot be read now.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)) as opened:
        rows = opened.execute("SELECT spec, row FROM workloads ORDER BY number").fetchall()
        projects = opened.execute("SELECT spec FROM projects ORDER BY number").fetchall()
    return (
        [cluster_sqlite._read_row(spec, row) for spec, row in rows],
        [cluster_sqlite._PROJECT.validate_json(spec) for (spec,) in projects],
    )


def _start_dirs(testbed: Testbed) -> list[Path]:
    """Return the folders of all starts of this platform's jobs in which a program ran."""
    found = testbed.platform.data_dir.glob("jobs/*/*/*/*/process.json")
    return [path.parent for path in found]


def _exit_code(place: Path) -> int | None:
    """Return the exit code of a start's program; None if it was not recorded."""
    try:
        end_record: dict[str, int] = json.loads((place / "ended.json").read_text())
    except FileNotFoundError:
        return None
    return end_record["exit_code"]


def unfinished_starts(testbed: Testbed) -> Counter[str]:
    """Count each job's starts without a recorded end: killed with their supervisor."""
    return Counter(place.parts[-3] for place in _start_dirs(testbed) if _exit_code(place) is None)


def runs_after_success(testbed: Testbed) -> list[str]:
    """Return a sentence for each successful start that was not the last of its job."""
    last: dict[str, int] = {}
    starts = [
        (p, p.parts[-3], int(p.parts[-2].removeprefix("attempt-"))) for p in _start_dirs(testbed)
    ]
    for _, name, number in starts:
        last[name] = max(last.get(name, 0), number)
    return [
        f"{name} was started after start {number} had succeeded"
        for place, name, number in starts
        if number != last[name] and _exit_code(place) == 0
    ]


def orphaned_processes(testbed: Testbed, program: Path) -> list[str]:
    """Return a sentence for each process of this platform's jobs that still runs."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if str(program) in words and str(testbed.platform.data_dir) in str(process.environ()):
                found.append(f"{' '.join(words)} is orphaned")
        except psutil.Error:
            continue
    return found
