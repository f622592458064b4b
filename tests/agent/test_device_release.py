"""Release of a session's devices: its programs get SIGTERM, then SIGKILL, parents first."""

from __future__ import annotations

import subprocess
import sys
from signal import SIGKILL, SIGTERM

import psutil
import pytest

from runai.hub_service.agent.enforcement.device_release import KILL_AFTER_S, DeviceReleaser
from runai.hub_service.agent.readings import Poll, ProcessReading
from runai.hub_service.wire.reports import AgentAllocation

KERNEL_PROGRAM = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def pids(eventually):
    """Return the PIDs of a server, its kernel, and the kernel's loading process."""
    server = psutil.Process()
    with subprocess.Popen([sys.executable, "-c", KERNEL_PROGRAM], stdin=subprocess.PIPE) as kernel:
        children = psutil.Process(kernel.pid).children
        eventually(children)
        yield server.pid, kernel.pid, children()[0].pid


def poll_of(*pids: int) -> Poll:
    processes = (ProcessReading("GPU-0", pid, "vision/lab", 0.5, 100, created=1.0) for pid in pids)
    return Poll(at=0.0, interval=1.0, devices=(), processes=tuple(processes))


def test_gpu_release_terminates_the_kernel_then_its_child_and_not_the_server(pids):
    server, kernel, loader = pids
    sent: list[tuple[int, int]] = []
    now = 0.0

    def send(pid: int, _created: float, number: int) -> bool:
        sent.append((pid, number))
        return True

    releaser = DeviceReleaser(send=send, clock=lambda: now)
    lab = AgentAllocation(
        workload="vision/lab",
        worker="vision/lab-0",
        project="vision",
        user="bob",
        shares=[],
        pid=server,
        created=1.0,
        is_server=True,
        release=True,
    )

    releaser.enforce(poll_of(server, loader, kernel), [lab])
    assert sent == [(kernel, SIGTERM)]

    now = KILL_AFTER_S
    releaser.enforce(poll_of(server, loader, kernel), [lab])
    assert sent[1:] == [(kernel, SIGKILL)]

    releaser.enforce(poll_of(server, loader), [lab])
    assert sent[2:] == [(loader, SIGTERM)]
