"""Fixtures of the ledger's tests.

clock         the ledger's time: clock.now
new_database  () -> a migrated database: a SQLite file; with `on_each_database` PostgreSQL as well
database      one such database
rows          rows(sql) -> rows of `database`
open_ledger   open_ledger(): a ledger on that database and clock; opening again is a restart
report        report(at, interval, {("vision/a", "GPU-0"): 0.5}) -> an agent's report
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from postgres import PostgresServer, postgres_server
from runai.hub_service.ledger import Ledger
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.wire.reports import AgentReport, DeviceSample, UsageSample

START = 1_700_000_000.0
"""A multiple of ten seconds, but of no longer window."""


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start one server for all tests; each gets a database of its own."""
    with postgres_server() as server:
        yield server


NewDatabase = Callable[[], "str | Path"]


@pytest.fixture(scope="session")
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NewDatabase:
    """Migrate once, then copy: each migration takes 0.1 s."""
    if getattr(request, "param", "sqlite") == "postgresql":
        return _new_on_postgres(request.getfixturevalue("postgres"))
    folder = tmp_path_factory.mktemp("ledger")
    empty = folder / "empty.sqlite"
    LedgerStore(empty).close()
    numbers = count()
    return lambda: Path(shutil.copy(empty, folder / f"{next(numbers)}.sqlite"))


def _new_on_postgres(server: PostgresServer) -> NewDatabase:
    engine = sa.create_engine(server.address, isolation_level="AUTOCOMMIT")
    numbers = count()

    def new(template: str = "empty") -> str:
        name = f"ledger_{next(numbers)}"
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        engine.dispose()
        return server.address_of(name)

    with engine.connect() as connection:
        connection.execute(sa.text("CREATE DATABASE empty"))
    engine.dispose()
    LedgerStore(server.address_of("empty")).close()
    return new


@pytest.fixture
def database(new_database: NewDatabase) -> str | Path:
    return new_database()


@pytest.fixture
def rows(database: str | Path) -> Callable[[str], list[tuple[object, ...]]]:
    def query(sql: str) -> list[tuple[object, ...]]:
        engine = sa.create_engine(ledger_url(database))
        with engine.connect() as connection:
            result = [tuple(row) for row in connection.execute(sa.text(sql))]
        engine.dispose()
        return result

    return query


@pytest.fixture
def open_ledger(database: str | Path, clock: Clock) -> Iterator[Callable[[], Ledger]]:
    opened: list[Ledger] = []

    def open_() -> Ledger:
        opened.append(Ledger(database, clock=clock))
        return opened[-1]

    yield open_
    for ledger in opened:
        ledger._store.close()


Utilization = Mapping[tuple[str, str], float | None]


@pytest.fixture
def report() -> Callable[..., AgentReport]:
    return make_report


def make_report(
    at: float, interval: float, utilization: Utilization, *, node: str = "here", memory: int = 0
) -> AgentReport:
    """Return an agent's report; a device's load is the sum of its workloads' loads."""
    devices: dict[str, float | None] = {}
    for (_, device), busy in utilization.items():
        devices[device] = None if busy is None else (devices.get(device) or 0.0) + busy
    return AgentReport(
        node=node,
        at=at,
        interval=interval,
        devices=[
            DeviceSample(device=device, utilization=busy, memory_mib=memory)
            for device, busy in devices.items()
        ],
        samples=[
            UsageSample(workload=workload, device=device, utilization=busy, memory_mib=memory)
            for (workload, device), busy in utilization.items()
        ],
    )
