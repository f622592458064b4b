"""Measure the ledger with 90 days of 64 workloads: any range, SQLite and PostgreSQL.

    python benchmarks/ledger.py     # prints, and writes benchmarks/results/ledger.json

History is made in the database by closed formulas (an hour at 80 %, an hour at 20 %): hours,
minutes, and ten seconds of the last two days, as the ledger itself leaves them. Then it is asked
about ranges that end now and about ranges at random, in steps as fine as can be had; every answer
is compared with the formulas. At last it writes ten seconds of what all workloads hold and use.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machine import measured

from postgres import find_postgres, postgres_server
from runai.hub_service.ledger import Held, Ledger, UsageFilter
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.store import Store
from runai.hub_service.ledger.totals import Scope
from runai.hub_service.wire.agent_reports import AgentReport, UsageSample

RESULTS = Path(__file__).parent / "results" / "ledger.json"
HOUR, DAY = 3600, 86400
DAYS = 90
END = 1_800_000_000 // DAY * DAY
START = END - DAYS * DAY
WORKLOADS = 64
ROUNDS = 5
AT_RANDOM = 40
WRITES = 30
SEED_OF_RANGES = 5
STEPS_S = (None, 1, 60, 3600)
TARGET_MS = 200
BY_AGE = sa.text("CREATE INDEX samples_by_age ON samples (level, at)")
SEED = [
    # GPUs of each workload; its project, user, node and device follow from its number.
    (0.25, 0.5, 1.0, 0.75)[n % 4]
    for n in range(WORKLOADS)
]


def scopes() -> dict[Scope, float]:
    """Return every series of such a cluster with the GPUs that it holds."""
    found: dict[Scope, float] = {Scope("watched"): 1.0}
    for n, gpus in enumerate(SEED):
        project, user = f"project-{n % 4}", f"user-{n % 8}"
        node, device = f"node-{n % 2}", f"GPU-{n % 40}"
        for scope in (
            Scope("all"),
            Scope("project", project=project),
            Scope("user", user=user),
            Scope("member", project=project, user=user),
            Scope("workload", project=project, user=user, workload=f"{project}/job-{n}"),
            Scope("node", node=node),
            Scope("device", device=device),
        ):
            found[scope] = found.get(scope, 0.0) + gpus
    return found


ASKED: dict[str, tuple[UsageFilter, Sequence[int]]] = {
    "cluster": (UsageFilter(), range(WORKLOADS)),
    "project": (UsageFilter(project="project-0"), range(0, WORKLOADS, 4)),
    "user": (UsageFilter(user="user-1"), range(1, WORKLOADS, 8)),
    "node": (UsageFilter(node="node-1"), range(1, WORKLOADS, 2)),
    "workload": (UsageFilter(workload="project-2/job-2"), (2,)),
}
"""Questions, and the workloads that they are about."""
RANGES = {"1 h": HOUR, "24 h": DAY, "47 h": 47 * HOUR, "7 d": 7 * DAY, "30 d": 30 * DAY}
RANGES |= {"89 d": 89 * DAY, "90 d": 90 * DAY}


def fill(connection: sa.Connection, level: int, since: int) -> int:
    """Write windows of all series since START + `since`; return how many."""
    written = 0
    for number, (scope, gpus) in enumerate(scopes().items(), 1):
        held = level * min(gpus if scope.kind == "device" else 1, 1)
        busy = f"{gpus * level} * (CASE WHEN (t - {level}) % 7200 < 3600 THEN 0.8 ELSE 0.2 END)"
        result = connection.execute(
            sa.text(
                "INSERT INTO samples"
                " (series_id, level, at, held_s, measured_s, allocated_s, used_s)"
                # SQLite wants it before the select, PostgreSQL allows it there.
                f" WITH RECURSIVE instants(t) AS (SELECT {since + level}"
                f" UNION ALL SELECT t + {level} FROM instants WHERE t < {DAYS * DAY})"
                f" SELECT {number}, {level}, {START} + t, {held}, {held}, {gpus * level}, {busy}"
                " FROM instants"
            )
        )
        written += result.rowcount
    return written


def write_series(connection: sa.Connection) -> None:
    """Write the series, all of them open."""
    for scope in scopes():
        values = {"opened": START, **scope._asdict()}
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(sa.text(f"INSERT INTO series ({names}) VALUES ({marks})"), values)


@contextmanager
def databases() -> Iterator[Mapping[str, str | Path]]:
    """Yield an empty database of each kind that can be had."""
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        file = Path(folder) / "ledger.sqlite"
        if find_postgres() is None:
            yield {"sqlite": file}
            return
        with postgres_server() as address:
            yield {"sqlite": file, "postgresql": address.format("postgres")}


def size_of(connection: sa.Connection, database: str | Path) -> int:
    """Return the bytes that the ledger takes."""
    if isinstance(database, Path):
        connection.commit()
        connection.execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)")).close()
        return database.stat().st_size
    return int(connection.scalar(sa.text("SELECT pg_total_relation_size('samples')")) or 0)


def make(database: str | Path) -> dict[str, Any]:
    """Fill a database; return what it takes."""
    Store(database).close()
    engine = sa.create_engine(ledger_url(database))
    began = time.perf_counter()
    with engine.connect() as connection:
        if isinstance(database, Path):
            connection.execute(sa.text("PRAGMA synchronous=OFF")).close()
        write_series(connection)
        # Made anew at the end: a minute instead of a quarter of an hour.
        connection.execute(sa.text("DROP INDEX samples_by_age"))
        rows = fill(connection, 3600, 0) + fill(connection, 60, 0)
        rows += fill(connection, 10, (DAYS - 2) * DAY)
        connection.execute(BY_AGE)
        whole = size_of(connection, database)
        connection.commit()
        connection.execute(sa.text("ANALYZE")).close()
        connection.commit()
    engine.dispose()
    return {
        "series": len(scopes()),
        "rows": rows,
        "filled_in_s": round(time.perf_counter() - began, 1),
        "mib": round(whole / 2**20),
    }


def busy_s(t: float) -> float:
    """Return the seconds that one GPU was busy in the first t of history, as `fill` has them."""
    return 0.2 * t + 0.6 * (t // 7200) * 3600 + 0.6 * min(t % 7200, 3600)


async def timed(
    ledger: Ledger, name: str, since: float, until: float, step_s: int | None = None
) -> tuple[float, int]:
    """Ask, compare the answer with the formula, and return its milliseconds and points."""
    who, workloads = ASKED[name]
    began = time.perf_counter()
    found = await ledger.usage(who, since, until, step_s)
    took = 1000 * (time.perf_counter() - began)
    busy = busy_s(found.until - START) - busy_s(found.since - START)
    exact = sum(SEED[n] for n in workloads) * busy / (found.until - found.since)
    assert found.utilized_average is not None
    assert abs(found.utilized_average - exact) < 0.001, (name, since, until)
    return took, len(found.points)


def figures_of(of: str, range_: str, found: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Sum up what several questions took."""
    times = [took for took, _ in found]
    return {
        "of": of,
        "range": range_,
        "points": max(points for _, points in found),
        "median_ms": round(statistics.median(times), 1),
        "max_ms": round(max(times), 1),
    }


async def measure(database: str | Path) -> list[dict[str, Any]]:
    """Ask every question over every range; return the figures."""
    figures = []
    now = [float(END)]
    ledger = Ledger(database, clock=lambda: now[0])
    for name in ASKED:
        for range_, length in RANGES.items():
            times = [await timed(ledger, name, END - length, END) for _ in range(ROUNDS)]
            figures.append(figures_of(name, range_, times))
        chance, times = random.Random(SEED_OF_RANGES), []
        for _ in range(AT_RANDOM):
            since, until = sorted(chance.uniform(START, END) for _ in range(2))
            times.append(await timed(ledger, name, since, until, chance.choice(STEPS_S)))
        figures.append(figures_of(name, f"{AT_RANDOM} at random", times))
    began = time.perf_counter()
    past = await ledger.past(END - 30 * DAY)
    figures.append(figures_of("past", "30 d", [(1000 * (time.perf_counter() - began), len(past))]))
    times = []
    for _ in range(WRITES):
        now[0] += 10
        ledger.record(now[0], 10.0, HOLDS, report(now[0]))
        began = time.perf_counter()
        await ledger.flush()
        times.append((1000 * (time.perf_counter() - began), 0))
    figures.append(figures_of("writing", "10 s", times))
    ledger.close()
    return figures


HOLDS = [
    Held(f"project-{n % 4}", f"user-{n % 8}", f"project-{n % 4}/job-{n}", f"GPU-{n % 40}",
         round(1000 * gpus), f"node-{n % 2}")
    for n, gpus in enumerate(SEED)
]  # fmt: skip


def report(at: float) -> AgentReport:
    """Return what an agent says that all workloads used in the last ten seconds."""
    samples = [
        UsageSample(workload=held.workload, device=held.device, utilization=0.5, memory_mib=1)
        for held in HOLDS
    ]
    return AgentReport(node="node-0", at=at, interval=10.0, devices=[], samples=samples)


def main() -> int:
    """Measure, print, keep; fail where a question takes too long."""
    result: dict[str, Any] = {
        **measured(),
        "days": DAYS,
        "workloads": WORKLOADS,
        "target_ms": TARGET_MS,
        "databases": {},
    }
    with databases() as found:
        for kind, database in found.items():
            stored = make(database)
            print(kind, stored)
            figures = asyncio.run(measure(database))
            for one in figures:
                print("  " + "  ".join(f"{name} {value}" for name, value in one.items()))
            slowest = max(one["max_ms"] for one in figures)
            result["databases"][kind] = {
                "stored": stored,
                "slowest_ms": slowest,
                "figures": figures,
            }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(one["slowest_ms"] for one in result["databases"].values())
    print(f"slowest: {worst} ms (target {TARGET_MS})")
    return int(worst > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
