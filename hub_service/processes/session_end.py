"""End of a session's processes that its notebook server has left.

Kernels, terminals and what they started may be in sessions of their own, and outlive the server.
The random id of the start in their environment identifies them. A process in the tree of another
workload is that workload's, whatever its environment says; one of another account, or that survives
SIGKILL, is left over.
"""

import asyncio
import contextlib
import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import psutil

from runai.hub_service.processes import pidfd

SESSION_ID = "RUNAI_SESSION_ID"
"""Variable with the random id of a start."""
SUPERVISOR = "/local/supervisor/subreaper.py"
"""End of the path of the program above each job."""

TERMINATED_WITHIN_S = 10.0
KILLED_WITHIN_S = 5.0
LOOK_EVERY_S = 0.1
QUIET_SEARCHES = 3
STOP_ROUNDS = 50
OLDER_S = 2.0
"""Tolerance of start times: the boot time moves with the clock."""


class LeftOver(NamedTuple):
    """A process that could not be ended."""

    pid: int
    created: float
    name: str
    account: str


@dataclass(frozen=True, slots=True)
class SessionProcesses:
    """The processes of one start of a session, and how to recognise them."""

    id: str
    since: float
    """Start of its server, as psutil's create_time."""
    uid: int
    """Account of its server."""
    in_group: Callable[[int], bool | None] = lambda _pid: None
    """Returns whether a PID lies in its control group; False: in another workload's; None: neither.
    """

    def find(self) -> Iterator[psutil.Process]:
        """Yield its running processes, newest first, as one that forks all the time is soon gone.

        Those are in its control group, or carry its id and are below no other workload.
        """
        for pid in sorted(psutil.pids(), reverse=True):
            with contextlib.suppress(psutil.Error, OSError):
                process = psutil.Process(pid)
                if self._is_its(process) and not self._is_below_others(process):
                    yield process

    def is_own(self, process: psutil.Process) -> bool:
        """Return True if a process runs as its account."""
        with contextlib.suppress(psutil.Error):
            return process.uids().real == self.uid
        return False

    def send(self, process: psutil.Process, number: signal.Signals) -> None:
        """Signal a process, if it is still one of its own."""
        with contextlib.suppress(PermissionError, psutil.Error):
            try:
                pidfd.send(process.pid, process.create_time(), number, self._is_its)
            except OSError as failed:
                if failed.errno != errno.ENOSYS:  # a kernel without pidfds
                    raise
                if self._is_its(process):
                    process.send_signal(number)

    def _is_its(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() < self.since - OLDER_S:
                return False
            grouped = self.in_group(process.pid)
            if grouped is None:
                grouped = process.environ().get(SESSION_ID) == self.id
            return grouped and process.status() != psutil.STATUS_ZOMBIE
        return False

    def _is_below_others(self, process: psutil.Process) -> bool:
        if self.in_group(process.pid):
            return False
        with contextlib.suppress(psutil.Error, OSError):
            for above in process.parents():
                if above.environ().get(SESSION_ID, self.id) != self.id:
                    return True
                if any(word.endswith(SUPERVISOR) for word in above.cmdline()):
                    return True
        return False


async def end_session(session: SessionProcesses) -> Sequence[LeftOver]:
    """End what is left of a session: SIGTERM, after ten seconds SIGKILL; return the rest.

    Repeatable; other tasks run meanwhile.
    """
    told = set[psutil.Process]()
    if not await _all_gone(partial(_terminate, session, told), TERMINATED_WITHIN_S):
        await _all_gone(partial(_kill, session), KILLED_WITHIN_S)
    return await asyncio.to_thread(_left_over, session)


async def _all_gone(signal_own: Callable[[], set[psutil.Process]], within_s: float) -> bool:
    """Signal the processes that run until there are none; return False if time is over.

    A process that forks and ends, or that begins another program, may be missed by one search.
    """
    clock = asyncio.get_running_loop().time
    until, quiet = clock() + within_s, 0
    while quiet < QUIET_SEARCHES:
        own = await asyncio.to_thread(signal_own)
        if own and clock() >= until:
            return False
        quiet = 0 if own else quiet + 1
        await asyncio.sleep(LOOK_EVERY_S)
    return True


def _own(session: SessionProcesses) -> set[psutil.Process]:
    return {process for process in session.find() if session.is_own(process)}


def _terminate(session: SessionProcesses, told: set[psutil.Process]) -> set[psutil.Process]:
    """Send SIGTERM to each process once; return those that run."""
    own = _own(session)
    for process in own - told:
        session.send(process, signal.SIGTERM)
    told |= own
    return own


def _kill(session: SessionProcesses) -> set[psutil.Process]:
    """Kill all processes, however fast they fork; return those that ran."""
    own = set[psutil.Process]()
    # Stop all before the kill: a process killed alone is replaced by its sibling.
    for _ in range(STOP_ROUNDS):
        before = set(own)
        for process in session.find():
            if process not in own and session.is_own(process):
                session.send(process, signal.SIGSTOP)
                own.add(process)
        if own == before:
            break
    for process in own:
        session.send(process, signal.SIGKILL)
    return own


def _left_over(session: SessionProcesses) -> Sequence[LeftOver]:
    left = []
    for process in session.find():
        with contextlib.suppress(psutil.Error):
            name, account = process.name(), process.username()
            left.append(LeftOver(process.pid, process.create_time(), name, account))
    return left


def still_there(left: LeftOver) -> bool:
    """Return True if a process that was left over still runs."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(left.pid)
        return (
            abs(process.create_time() - left.created) < OLDER_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    return False
