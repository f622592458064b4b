"""Real processes on both kinds of devices: one goes over its memory, its neighbour goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from runai.hub_service.agent.enforcement.memory_enforcer import Limits, MemoryEnforcer, MpsClients
from runai.hub_service.agent.readings import Poll, ProcessReading
from runai.hub_service.limits.sharing import MPS_LIMIT
from runai.hub_service.processes import pidfd

LIMIT_MIB = 64
OVER_LIMIT_MIB = 700  # the limit, the slack of 512 MiB, and what an interpreter needs by itself
TIMEOUT_S = 19  # the escalation ends after 17

STUBBORN_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.write(1, b"%d\\n" % number))
ballast = b"x" * (int(sys.argv[1]) << 20)
print("ready", flush=True)
while True:
    signal.pause()
"""

FINISHING_PROGRAM = """
import sys
ballast = b"x" * (int(sys.argv[1]) << 20)
print("ready", flush=True)
sys.stdin.read()
print("finished", flush=True)
"""


@dataclass
class Programs:
    """Programs of the test; all of them end with it."""

    harness: Any
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(
        self, program: str, mib: int, device: int = 0
    ) -> tuple[subprocess.Popen[str], psutil.Process]:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process = psutil.Process(child.pid)
        self.harness.users.append((process, device, False, mib))
        return child, process


@pytest.fixture
def programs(harness) -> Iterator[Programs]:
    running = Programs(harness)
    yield running
    for child in running.started:
        child.kill()
        child.communicate()


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_memory_enforcer_kills_only_the_job_over_its_limit(harness, allocate, programs):
    offender, offender_process = programs.run(STUBBORN_PROGRAM, OVER_LIMIT_MIB)
    neighbour, neighbour_process = programs.run(FINISHING_PROGRAM, 10)
    outsider, _ = programs.run(FINISHING_PROGRAM, OVER_LIMIT_MIB)
    gpu = harness.uuids[0]
    allocations = [
        allocate("vision/a", gpu, process=offender_process, gpus=0.5, limits_mib={gpu: LIMIT_MIB}),
        allocate("nlp/b", gpu, process=neighbour_process, gpus=0.5, limits_mib={gpu: LIMIT_MIB}),
    ]
    clock, escalations, received_signals = Clock(), list[Any](), list[int]()
    enforcer = MemoryEnforcer(clock=clock)
    harness.poll(allocations)  # the first poll may only set a baseline

    while clock.now < TIMEOUT_S and offender.poll() is None:
        notices = enforcer.enforce(harness.poll(allocations), allocations)
        escalations += [(clock.now, n.workload, n.device, n.rung) for n in notices]
        if notices and notices[-1].rung in {"interrupt", "terminate"}:
            received_signals.append(int(offender.stdout.readline()))  # before the kill
        if notices and notices[-1].rung == "kill":
            offender.wait()
        clock.now += 1

    assert escalations == [
        (2, "vision/a", gpu, "notice"),
        (5, "vision/a", gpu, "interrupt"),
        (15, "vision/a", gpu, "terminate"),
        (17, "vision/a", gpu, "kill"),
    ]
    assert received_signals == [signal.SIGINT, signal.SIGTERM]
    assert offender.returncode == -signal.SIGKILL
    assert [child.communicate()[0] for child in (neighbour, outsider)] == ["finished\n"] * 2
    assert [child.returncode for child in (neighbour, outsider)] == [0, 0]


def test_memory_limits_of_workers_on_the_same_device_are_summed(allocate):
    allocations = [
        allocate("vision/a", "GPU-0", gpus=0.25, worker=n, limits_mib={"GPU-0": 4096})
        for n in range(2)
    ]

    (holding,) = Limits(allocations).holdings(Poll(at=0.0, interval=1.0, devices=(), processes=()))

    assert (holding.workload, holding.limit_mib, holding.members) == ("vision/a", 8192, ())


def test_memory_limits_skip_whole_devices_and_unidentified_processes(allocate):
    def reading(pid: int, created: float, mib: int | None = 9000) -> ProcessReading:
        return ProcessReading("GPU-0", pid, "vision/a", 0.0, mib, created=created)

    # The start time of PID 8 is unknown, and the memory of PID 9.
    readings = (reading(7, 1.0), reading(8, 0.0), reading(9, 1.0, None))
    poll = Poll(at=0.0, interval=1.0, devices=(), processes=readings)

    assert Limits([allocate("vision/a", "GPU-0")]).holdings(poll) == []
    (holding,) = Limits([allocate("vision/a", "GPU-0", limits_mib={"GPU-0": 4096})]).holdings(poll)
    assert [member.pid for member in holding.members] == [7]


def test_memory_limits_spare_the_notebook_server(allocate, start):
    server, kernel_pid = start(), 9
    allocation = allocate(
        "vision/lab", "GPU-0", process=server, limits_mib={"GPU-0": 1}, is_server=True
    )
    readings = tuple(
        ProcessReading("GPU-0", pid, "vision/lab", 0.0, 100, created=1.0)
        for pid in (server.pid, kernel_pid)
    )

    (holding,) = Limits([allocation]).holdings(
        Poll(at=0.0, interval=1.0, devices=(), processes=readings)
    )

    assert [member.spared for member in holding.members] == [True, False]


def test_process_with_a_reused_pid_is_not_signalled(start):
    process = start()

    assert not pidfd.send(process.pid, process.create_time() - 1.0, signal.SIGKILL)
    assert process.is_running()
    assert pidfd.send(process.pid, process.create_time(), signal.SIGKILL)
    process.wait()
    assert not pidfd.send(process.pid, process.create_time(), signal.SIGKILL)


def test_memory_notice_reports_a_process_that_may_not_be_signalled(allocate):
    reading = ProcessReading("GPU-0", 7, "vision/a", 0.0, OVER_LIMIT_MIB, created=1.0)
    allocations = [allocate("vision/a", "GPU-0", gpus=0.5, limits_mib={"GPU-0": LIMIT_MIB})]

    def refuse(_pid: int, _created: float, _number: signal.Signals) -> bool:
        raise PermissionError

    clock, notices = Clock(), list[Any]()
    enforcer = MemoryEnforcer(refuse, clock)
    for _ in range(6):  # the interrupt is due after 5 s
        poll = Poll(at=clock.now, interval=1.0, devices=(), processes=(reading,))
        notices += enforcer.enforce(poll, allocations)
        clock.now += 1

    assert notices[-1].text.endswith("is interrupted, but the platform's account has no right to")


def test_kernel_process_is_reported_with_its_notebook(harness, allocate, start):
    process = harness.use(0, mib=10, env={"JPY_SESSION_NAME": "work/a.ipynb"})
    harness.use(1, mib=10, env={"JPY_SESSION_NAME": "theirs.ipynb"})

    report = harness.report([allocate("vision/lab", harness.uuids[0], process=process)])

    assert {p.notebook for p in report.processes if p.pid == process.pid} == {"a.ipynb"}
    assert "theirs.ipynb" not in {p.notebook for p in report.processes}


def test_mps_client_is_recognized_by_its_environment(allocate, start):
    limits = {"GPU-0": 4096}
    client = allocate(
        "vision/a", "GPU-0", process=start(env={MPS_LIMIT: "0=4096M"}), limits_mib=limits
    )
    other = allocate("vision/b", "GPU-0", process=start(), limits_mib=limits)
    without_process = allocate("vision/c", "GPU-0", limits_mib=limits)
    clients = MpsClients()

    assert clients.workloads_among([client, other, without_process]) == {"vision/a"}
    # A workload is a client only if all its workers are.
    second_worker = other.model_copy(update={"workload": "vision/a"})
    assert clients.workloads_among([client, second_worker]) == frozenset()
