"""Measure the ledger with 90 days of 64 workloads: any range, SQLite and PostgreSQL.

    python benchmarks/ledger.py     # prints, and writes benchmarks/results/ledger.json

History is made in the database by closed formulas (an hour at 80 %, an hour at 20 %), one row per
minute and one per ten seconds of the last two days, as the ledger itself leaves them. Baseline of
the same run: the sum over one-minute samples of the scope's workloads. Both must say the same. Then
ranges at random, in steps as fine as can be had, whose answers are compared with the formulas.
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
from typing import Any, NamedTuple

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machine import measured

from postgres import find_postgres, postgres_server
from runai.hub_service.ledger import Ledger, UsageFilter
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.store import Store
from runai.hub_service.ledger.totals import Scope

RESULTS = Path(__file__).parent / "results" / "ledger.json"
HOUR, DAY = 3600, 86400
DAYS = 90
END = 1_800_000_000 // DAY * DAY
START = END - DAYS * DAY
WORKLOADS = 64
ROUNDS = 5
AT_RANDOM = 40
SEED_OF_RANGES = 5
STEPS_S = (None, 1, 60, 3600)
TARGET_MS = 200
BY_AGE = sa.text("CREATE INDEX totals_by_age ON totals (level, at)")
SEED = [
    # GPUs of each workload; its project, user, node and device follow from its number.
    (0.25, 0.5, 1.0, 0.75)[n % 4]
    for n in range(WORKLOADS)
]

USED = "{gpus} * (0.2 * t + 0.6 * (t / 7200) * 3600 + 0.6 * {least})"
LEAST = "(CASE WHEN t % 7200 < 3600 THEN t % 7200 ELSE 3600 END)"
LEVEL = "(CASE WHEN t % 3600 = 0 THEN 3600 WHEN t % 60 = 0 THEN 60 ELSE 10 END)"


class Ask(NamedTuple):
    """A question, and the workloads whose samples answer it the naive way."""

    name: str
    who: UsageFilter
    workloads: Sequence[int]


def scopes() -> dict[Scope, float]:
    """Return every series of such a cluster with the GPUs that it holds."""
    found: dict[Scope, float] = {}
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


ASKED = [
    Ask("cluster", UsageFilter(), range(WORKLOADS)),
    Ask("project", UsageFilter(project="project-0"), range(0, WORKLOADS, 4)),
    Ask("user", UsageFilter(user="user-1"), range(1, WORKLOADS, 8)),
    Ask("node", UsageFilter(node="node-1"), range(1, WORKLOADS, 2)),
    Ask("workload", UsageFilter(workload="project-2/job-2"), (2,)),
]
RANGES = {"1 h": HOUR, "24 h": DAY, "47 h": 47 * HOUR, "7 d": 7 * DAY, "30 d": 30 * DAY}
RANGES |= {"89 d": 89 * DAY, "90 d": 90 * DAY}


def instants(step: int, since: int) -> str:
    """Return SQL that gives every multiple of `step` since START + `since`, as t; for both."""
    return f"""WITH RECURSIVE instants(t) AS (
        SELECT {since + step} UNION ALL SELECT t + {step} FROM instants WHERE t < {DAYS * DAY})"""


def fill(connection: sa.Connection, step: int, since: int, only: str = "TRUE") -> int:
    """Write rows of all series, `step` apart since START + `since`; return how many."""
    written = 0
    for number, (scope, gpus) in enumerate(scopes().items(), 1):
        used = USED.format(gpus=gpus, least=LEAST)
        held = gpus if scope.kind == "device" else 1
        result = connection.execute(
            sa.text(
                # SQLite wants it before the select, PostgreSQL allows it there.
                "INSERT INTO totals (series_id, at, level, held_s, measured_s, allocated_s,"
                f" used_s, idle_s) {instants(step, since)}"
                f" SELECT {number}, {START} + t, {LEVEL}, {min(held, 1)} * t, {min(held, 1)} * t,"
                f" {gpus} * t, {used}, 0 FROM instants WHERE {only}"
            )
        )
        written += result.rowcount
    return written


def write_series(connection: sa.Connection) -> None:
    """Write the series and the one span that was watched."""
    for number, scope in enumerate(scopes(), 1):
        values = {"id": number, "opened": START, **scope._asdict()}
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(sa.text(f"INSERT INTO series ({names}) VALUES ({marks})"), values)
    connection.execute(sa.text(f"INSERT INTO spans VALUES (1, {START}, {END})"))


def write_samples(connection: sa.Connection) -> None:
    """Write what a naive ledger would keep: what each workload used in each minute."""
    connection.execute(
        sa.text(
            "CREATE TABLE samples (workload INTEGER, at BIGINT, allocated DOUBLE PRECISION,"
            " used DOUBLE PRECISION, PRIMARY KEY (workload, at))"
        )
    )
    for number, gpus in enumerate(SEED):
        busy = f"{gpus} * 60 * (CASE WHEN (t - 60) % 7200 < 3600 THEN 0.8 ELSE 0.2 END)"
        connection.execute(
            sa.text(
                f"INSERT INTO samples {instants(60, 0)}"
                f" SELECT {number}, {START} + t, {gpus} * 60, {busy} FROM instants"
            )
        )


def naive(connection: sa.Connection, ask: Ask, since: int, step_s: int) -> float:
    """Integrate the samples of a scope's workloads for a chart and its average."""
    rows = connection.execute(
        sa.text(
            f"SELECT (at - 1) / {step_s}, sum(allocated), sum(used) FROM samples"
            f" WHERE workload IN ({', '.join(map(str, ask.workloads))})"
            f" AND at > {since} AND at <= {END} GROUP BY 1 ORDER BY 1"
        )
    ).all()
    return float(sum(row[2] for row in rows)) / (END - since)


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
    return int(connection.scalar(sa.text("SELECT pg_total_relation_size('totals')")) or 0)


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
        connection.execute(sa.text("DROP INDEX totals_by_age"))
        minutes = fill(connection, 60, 0)
        connection.execute(BY_AGE)
        of_minutes = size_of(connection, database)
        connection.execute(sa.text("DROP INDEX totals_by_age"))
        fine = fill(connection, 10, (DAYS - 2) * DAY, only="t % 60 <> 0")
        connection.execute(BY_AGE)
        whole = size_of(connection, database)
        write_samples(connection)
        connection.commit()
        connection.execute(sa.text("ANALYZE")).close()
        connection.commit()
    engine.dispose()
    return {
        "series": len(scopes()),
        "rows": minutes + fine,
        "filled_in_s": round(time.perf_counter() - began, 1),
        "mib_per_day": round(of_minutes / DAYS / 2**20, 2),
        "mib_of_ten_seconds_for_two_days": round((whole - of_minutes) / 2**20, 1),
        "mib": round(whole / 2**20),
    }


def busy_s(t: float) -> float:
    """Return the seconds that one GPU was busy in the first t of history, as `USED` has them."""
    return 0.2 * t + 0.6 * (t // 7200) * 3600 + 0.6 * min(t % 7200, 3600)


async def at_random(ledger: Ledger, ask: Ask) -> dict[str, Any]:
    """Ask for ranges anywhere, with steps of any length; return the figures."""
    chance, times, points = random.Random(SEED_OF_RANGES), [], 0
    gpus = sum(SEED[n] for n in ask.workloads)
    for _ in range(AT_RANDOM):
        since, until = sorted(chance.uniform(START, END) for _ in range(2))
        step_s = chance.choice(STEPS_S)
        began = time.perf_counter()
        found = await ledger.usage(ask.who, since, until, step_s)
        times.append(1000 * (time.perf_counter() - began))
        points = max(points, len(found.points))
        busy = busy_s(found.until - START) - busy_s(found.since - START)
        exact = gpus * busy / (found.until - found.since)
        assert found.utilized_average is not None
        assert abs(found.utilized_average - exact) < 0.001, (ask.name, since, until)
    return {
        "of": ask.name,
        "range": f"{AT_RANDOM} at random",
        "points": points,
        "median_ms": round(statistics.median(times), 1),
        "max_ms": round(max(times), 1),
    }


async def measure(database: str | Path) -> list[dict[str, Any]]:
    """Ask every question over every range, beside the naive way; return the figures."""
    figures = []
    engine = sa.create_engine(ledger_url(database))
    ledger = Ledger(database, clock=lambda: float(END))
    with engine.connect() as connection:
        for ask in ASKED:
            for name, length in RANGES.items():
                times = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    found = await ledger.usage(ask.who, END - length, END)
                    times.append(1000 * (time.perf_counter() - began))
                # Once: it takes most of a minute for all workloads and 90 days.
                began = time.perf_counter()
                average = naive(connection, ask, int(found.since), max(60, found.step_s))
                baseline = 1000 * (time.perf_counter() - began)
                assert found.utilized_average is not None
                apart = abs(found.utilized_average - average)
                assert apart < 0.001, (ask.name, name, found.utilized_average, average)
                figures.append(
                    {
                        "of": ask.name,
                        "range": name,
                        "points": len(found.points),
                        "median_ms": round(statistics.median(times), 1),
                        "max_ms": round(max(times), 1),
                        "baseline_ms": round(baseline, 1),
                    }
                )
    figures += [await at_random(ledger, ask) for ask in ASKED]
    began = time.perf_counter()
    past = await ledger.past(END - 30 * DAY)
    figures.append(
        {
            "of": "past workloads",
            "range": "30 d",
            "points": len(past),
            "max_ms": round(1000 * (time.perf_counter() - began), 1),
        }
    )
    ledger._store.close()  # noqa: SLF001  nothing happened that is to be written
    engine.dispose()
    return figures


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
