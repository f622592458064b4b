"""Release of devices: stop a session's programs on them, except its notebook server.

Each program gets SIGTERM, and SIGKILL after five seconds: kernels end, files and the server stay.
A kernel's loading processes come after the kernel, which their end would interrupt. Runs at every
poll, so that no program of a released session returns to the devices.
"""

import logging
import time
from collections.abc import Callable, Sequence
from signal import SIGKILL, SIGTERM, Signals

import psutil

from runai.hub_service.agent.readings import Poll
from runai.hub_service.processes import pidfd
from runai.hub_service.wire.reports import AgentAllocation

log = logging.getLogger(__name__)

KILL_AFTER_S = 5.0


class DeviceReleaser:
    """Programs on released devices, each with the time of its SIGTERM."""

    def __init__(
        self,
        send: Callable[[int, float, Signals], bool] = pidfd.send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Signal through `send`, which must not signal another process with a reused PID."""
        self._send = send
        self._clock = clock
        self._terminated_at: dict[tuple[int, float], float] = {}

    def enforce(self, poll: Poll, allocations: Sequence[AgentAllocation]) -> None:
        """Send SIGTERM, later SIGKILL, to each program that still uses a released device."""
        released = {a.workload for a in allocations if a.release}
        servers = {a.pid for a in allocations if a.is_server}
        on_devices = {
            (p.pid, p.created): p.name
            for p in poll.processes
            if p.workload in released and p.pid not in servers and p.created
        }
        now, pids = self._clock(), {pid for pid, _ in on_devices}
        for (pid, created), name in on_devices.items():
            if not pids.isdisjoint(_ancestors(pid)):
                continue  # its parent program comes first
            terminated_at = self._terminated_at.setdefault((pid, created), now)
            is_first = terminated_at == now
            if is_first or now - terminated_at >= KILL_AFTER_S:
                self._signal(pid, created, name, SIGTERM if is_first else SIGKILL)
        self._terminated_at = {
            key: terminated_at
            for key, terminated_at in self._terminated_at.items()
            if key in on_devices
        }

    def _signal(self, pid: int, created: float, name: str, number: Signals) -> None:
        try:
            self._send(pid, created, number)
        except PermissionError:
            log.warning("no right to signal process %d (%s) on a released device", pid, name)


def _ancestors(pid: int) -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.Error:
        return []
