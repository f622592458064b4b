"""End the programs that are on devices which their session gave back; its notebook server stays.

Each is asked (SIGTERM), and after five seconds killed: a kernel ends, its files and its server do
not. Sees every poll, so that a released session does not come back unasked. Called by the loop.
"""

import logging
import time
from collections.abc import Callable, Sequence
from signal import SIGKILL, SIGTERM, Signals

from runai.hub_service.agent.readings import Poll
from runai.hub_service.processes import pidfd
from runai.hub_service.wire.agent_reports import AgentAllocation

log = logging.getLogger(__name__)

KILL_AFTER_S = 5.0


class Releaser:
    """Remembers whom it has asked."""

    def __init__(
        self,
        send: Callable[[int, float, Signals], bool] = pidfd.send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Signal by `send`, which must not hit anybody else."""
        self._send = send
        self._clock = clock
        self._asked: dict[tuple[int, float], float] = {}

    def look(self, poll: Poll, allocations: Sequence[AgentAllocation]) -> None:
        """Ask, or kill, what is still on a device."""
        released = {a.workload for a in allocations if a.release}
        servers = {a.pid for a in allocations if a.is_server}
        on_devices = {
            (p.pid, p.created): p.name
            for p in poll.processes
            if p.workload in released and p.pid not in servers and p.created
        }
        now = self._clock()
        for (pid, created), name in on_devices.items():
            asked = self._asked.setdefault((pid, created), now)
            if asked == now or now - asked >= KILL_AFTER_S:
                self._signal(pid, created, name, SIGTERM if asked == now else SIGKILL)
        self._asked = {key: at for key, at in self._asked.items() if key in on_devices}

    def _signal(self, pid: int, created: float, name: str, number: Signals) -> None:
        try:
            self._send(pid, created, number)
        except PermissionError:
            log.warning("no right to end process %d (%s) on a device that was released", pid, name)
