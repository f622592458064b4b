"""Fixtures of the agent's tests: processes that really run, and devices that they hold.

start         start a process: start(busy=True, mib=50, relation="detached") -> its Process
allocate      an allocation: allocate("vision/a", 0, process=p)
sleeping_processes   two processes, the same for all tests of a file
nvml          the fake NVML library, compiled once; nvml.write(...) scripts it (needs `cc`)
harness       devices of one kind and the processes that use them; harness.kind names it
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from fake_driver import compiled_driver
from runai.hub_service.agent import usage
from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.readings import DeviceSource, Poll
from runai.hub_service.wire.reports import AgentAllocation, AgentReport
from runai.hub_service.wire.schemas import DeviceShareView
from waiting import eventually

# Prints its PID, and for "grandchild" and "detached" runs itself once more below.
PROGRAM = """
import os, signal, subprocess, sys
relation, busy, mib = sys.argv[1], sys.argv[2] == "busy", int(sys.argv[3])
if relation != "child":
    again = [sys.executable, __file__, "child", *sys.argv[2:]]
    below = subprocess.Popen(again, start_new_session=relation == "detached")
    if relation == "detached":
        os._exit(0)
    sys.exit(below.wait())
ballast = b"x" * (mib << 20)
print(os.getpid(), flush=True)
while busy:
    pass
while True:
    signal.pause()
"""

Start = Callable[..., psutil.Process]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the fake library: it must be compiled."""
    for item in items:
        if isinstance(item, pytest.Function) and "nvml_library" in item.fixturenames:
            item.add_marker(pytest.mark.cc)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process; all of them end with the test."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    started: list[psutil.Process] = []

    def run(
        *,
        busy: bool = False,
        mib: int = 0,
        relation: str = "child",
        env: dict[str, str] | None = None,
    ) -> psutil.Process:
        first = subprocess.Popen(
            [sys.executable, str(program), relation, "busy" if busy else "idle", str(mib)],
            env=os.environ | {"RUNAI_CHECKPOINT_DIR": str(tmp_path)} | (env or {}),
            stdout=subprocess.PIPE,
        )
        assert first.stdout is not None
        last = psutil.Process(int(first.stdout.readline()))
        first.stdout.close()
        started.append(last)
        if last.pid != first.pid:
            if relation == "detached":
                first.wait()
            else:
                started.append(psutil.Process(first.pid))
        processes.append(first)
        if not busy:  # an idle program starts up first, which may take a clock tick
            eventually(lambda: last.status() == psutil.STATUS_SLEEPING)
        return last

    processes: list[subprocess.Popen[bytes]] = []
    yield run
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for child in processes:
        child.wait()


@pytest.fixture(scope="module")
def sleeping_processes() -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """Start two sleeping processes for tests that only need their pids."""
    with (
        subprocess.Popen(["/bin/sleep", "3600"]) as first,
        subprocess.Popen(["/bin/sleep", "3600"]) as second,
    ):
        yield psutil.Process(first.pid), psutil.Process(second.pid)
        for process in (first, second):
            process.kill()


@pytest.fixture
def allocate(tmp_path: Path) -> Callable[..., AgentAllocation]:
    """Return a function that makes an allocation of devices of the harness or of UUIDs.

    It belongs to the test's own installation: another one with equal workload names may run too.
    """

    def make(
        workload: str,
        *devices: str,
        process: psutil.Process | None = None,
        gpus: float = 1.0,
        worker: int = 0,
        **more: Any,
    ) -> AgentAllocation:
        return AgentAllocation(
            workload=workload,
            worker=f"{workload}-{worker}",
            project=workload.partition("/")[0],
            user="ana",
            shares=[DeviceShareView(device=0, uuid=uuid, gpus=gpus) for uuid in devices],
            pid=process.pid if process else None,
            created=process.create_time() if process else None,
            **{"checkpoint_dir": str(tmp_path)} | more,
        )

    return make


@dataclass
class FakeNvml:
    """The state file of the fake library."""

    path: Path
    clock_us: int = 1_000_000_000

    def write(self, *lines: str) -> None:
        """Set the answers of the library from now on."""
        # A new file each time, which the library checks for: modification times are too coarse.
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.path)

    def next_us(self) -> int:
        """Return a time stamp newer than all before."""
        self.clock_us += 1_000_000
        return self.clock_us


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the fake library."""
    return compiled_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def nvml_615_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the fake library of a driver that has limits by control group."""
    return compiled_driver(tmp_path_factory.mktemp("nvml_615"), source="fake_nvml_615.c")


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Make pynvml use the fake library, whatever the machine has."""
    fake = FakeNvml(tmp_path / "nvml.state")
    fake.write()
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield fake
    pynvml._nvmlGetFunctionPointer_cache.clear()


@dataclass
class DeviceHarness:
    """Devices of one kind, and real processes that use them."""

    kind: str
    start_process: Start
    open: Callable[[], DeviceSource]
    users: list[tuple[psutil.Process, int, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = self.open()
        self.uuids = [device.uuid for device in self.source.devices()]

    def use(self, device: int, *, busy: bool = True, mib: int = 0, **more: Any) -> psutil.Process:
        """Start a process that uses a device."""
        process = self.start_process(busy=busy and self.kind == "simulated", mib=mib, **more)
        self.users.append((process, device, busy, mib))
        return process

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Poll after every busy process had time for some work."""
        self._work()
        return self.source.poll(allocations)

    def report(self, allocations: Sequence[AgentAllocation]) -> AgentReport:
        """Return the next report; the first poll may only set a baseline."""
        self.poll(allocations)
        return usage.report("here", self.poll(allocations), allocations)

    def _work(self) -> None:
        raise NotImplementedError


class SimulatedHarness(DeviceHarness):
    """Processes that burn processor time."""

    def _work(self) -> None:
        goals = [(p, _cpu(p) + 0.05) for p, _, busy, _ in self.users if busy and _lives(p)]
        eventually(
            lambda: all(_cpu(process) >= goal for process, goal in goals),
            what="every process gets processor time",
        )


class NvmlHarness(DeviceHarness):
    """Real processes with a load that the fake library reports."""

    fake: FakeNvml

    def _work(self) -> None:
        users = [user for user in self.users if _lives(user[0])]
        lines = [f"gpu GPU-{n} 1000 100 {self._used(users, n)} 50 Fake" for n in range(3)]
        for process, device, busy, mib in users:
            lines.append(f"proc {device} {process.pid} {mib} C")
            if busy:
                sharers = sum(1 for _, d, b, _ in users if d == device and b)
                stamp = self.fake.next_us()
                lines.append(f"sample {device} {process.pid} {stamp} {100 // sharers}")
        self.fake.write(*lines)

    @staticmethod
    def _used(users: Sequence[tuple[psutil.Process, int, bool, int]], device: int) -> int:
        return sum(mib for _, d, _, mib in users if d == device)


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.fixture(params=["simulated", pytest.param("nvml", marks=pytest.mark.cc)])
def harness(request: pytest.FixtureRequest, start: Start) -> Iterator[DeviceHarness]:
    """Three devices, of each kind in turn."""
    device_harness: DeviceHarness
    if request.param == "simulated":
        device_harness = SimulatedHarness(
            "simulated", start, lambda: SimulatedDevices(3, node="here")
        )
    else:
        fake = request.getfixturevalue("nvml")
        fake.write(*(f"gpu GPU-{n} 1000 100 0 0 Fake" for n in range(3)))
        device_harness = NvmlHarness("nvml", start, NvmlDevices)
        device_harness.fake = fake
    yield device_harness
    device_harness.source.close()
