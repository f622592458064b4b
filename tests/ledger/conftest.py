"""Fixtures of the ledger's tests.

clock     the ledger's time: clock.now
database  a file that is migrated already
ledger    open(): a ledger on that file and clock; opening again is a restart
report    report(at, interval, {("vision/a", "GPU-0"): 0.5}) -> an agent's report
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runai.hub_service.api.reports import AgentReport, DeviceSample, UsageSample
from runai.hub_service.ledger import Ledger
from runai.hub_service.ledger.store import Store

START = 1_700_000_000.0
"""A multiple of ten seconds and of nothing more."""


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate once: it takes a tenth of a second each time."""
    path = tmp_path_factory.mktemp("ledger") / "empty.sqlite"
    Store(path).close()
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty_database, tmp_path / "ledger.sqlite"))


@pytest.fixture
def ledger(database: Path, clock: Clock) -> Iterator[Callable[[], Ledger]]:
    opened: list[Ledger] = []

    def open_() -> Ledger:
        opened.append(Ledger(database, clock=clock))
        return opened[-1]

    yield open_
    for one in opened:
        one._store.close()


Utilization = Mapping[tuple[str, str], float | None]


@pytest.fixture
def report() -> Callable[..., AgentReport]:
    return make_report


def make_report(
    at: float, interval: float, utilization: Utilization, *, node: str = "here", memory: int = 0
) -> AgentReport:
    """Return what an agent tells; a device is as busy as its workloads together."""
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
