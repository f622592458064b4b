"""End of a session's processes that its notebook server has left.

Kernels, terminals and what they started may be in sessions of their own, and outlive the server.
The random id of the start in their environment identifies them. A process in the tree of another
workload is that workload's, whatever its environment says; one of another account, or that survives
SIGKILL, is left over.
"""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from runai.hub_service.processes import pidfd

SESSION_ID = "RUNAI_SESSION_ID"
"""Variable with the random id of a start."""
SUPERVISOR = "/local/supervisor/subreaper.py"
"""End of the path of the program above each job."""

TERMINATED_WITHIN_S = 10.0
KILLED_WITHIN_S = 5.0
EXIT_WITHIN_S = 2.0
POLL_S = 0.05
QUIET_SEARCHES = 5
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

        A process is its own in its control group, or with its id and below no other workload.
        """
        pids = sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)  # noqa: PTH208 - faster
        for pid in pids:
            if not self._is_marked(pid):
                continue
            with contextlib.suppress(psutil.Error, OSError):
                process = psutil.Process(pid)
                if self._is_member(process) and not self._is_in_other_workload(process):
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
                pidfd.send(process.pid, process.create_time(), number, self._is_member)
            except OSError as failed:
                if failed.errno != errno.ENOSYS:  # a kernel without pidfds
                    raise
                if self._is_member(process):
                    process.send_signal(number)

    def _is_member(self, process: psutil.Process) -> bool:
        """Return True if a process belongs to the session and runs."""
        with contextlib.suppress(psutil.Error):
            return (
                process.create_time() >= self.since - OLDER_S
                and self._is_marked(process.pid)
                and process.status() != psutil.STATUS_ZOMBIE
            )
        return False

    def _is_marked(self, pid: int) -> bool:
        """Return True if a process is in its control group, or carries its id in none."""
        is_in_group = self.in_group(pid)
        if is_in_group is not None:
            return is_in_group
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - faster
                return f"{SESSION_ID}={self.id}".encode() in file.read().split(b"\0")
        except OSError:  # it has ended, or is not ours to read
            return False

    def _is_in_other_workload(self, process: psutil.Process) -> bool:
        """Return True if an ancestor of a process belongs to another session, or to a job."""
        if self.in_group(process.pid):
            return False
        with contextlib.suppress(psutil.Error, OSError):
            for ancestor in process.parents():
                if ancestor.environ().get(SESSION_ID, self.id) != self.id:
                    return True
                if any(word.endswith(SUPERVISOR) for word in ancestor.cmdline()):
                    return True
        return False


async def end_session(session: SessionProcesses) -> Sequence[LeftOver]:
    """End what is left of a session: SIGTERM, after ten seconds SIGKILL; return the rest.

    Repeatable; other tasks run meanwhile.
    """
    end = _Termination(session)
    if not await _wait_for_exit(end.terminate, TERMINATED_WITHIN_S):
        await _wait_for_exit(end.kill, KILLED_WITHIN_S)
    return await asyncio.to_thread(_left_over, session)


async def _wait_for_exit(signal_own: Callable[[], set[psutil.Process]], within_s: float) -> bool:
    """Signal the processes that run until there are none; return False if time is over.

    A process that forks and ends, or that begins another program, may be missed by one search.
    """
    clock = asyncio.get_running_loop().time
    until, quiet_searches = clock() + within_s, 0
    while quiet_searches < QUIET_SEARCHES:
        own = await asyncio.to_thread(signal_own)
        if own and clock() >= until:
            return False
        quiet_searches = 0 if own else quiet_searches + 1
        await asyncio.sleep(POLL_S)
    return True


class _Termination:
    """One end of a session's processes."""

    def __init__(self, session: SessionProcesses) -> None:
        self._session = session
        self._terminated = set[psutil.Process]()
        self._groups = set[int]()
        """Process groups seen: a process that forks and ends leaves its group to its child."""

    def terminate(self) -> set[psutil.Process]:
        """Send SIGTERM to each process once; return the running ones."""
        own = self._find_own()
        for process in own - self._terminated:
            self._session.send(process, signal.SIGTERM)
        self._terminated |= own
        return own

    def kill(self) -> set[psutil.Process]:
        """Kill all processes, however fast they fork; return the ones that ran."""
        # Stop all before the kill: a process killed alone is replaced by its sibling. The search
        # then decides which are its own; the rest of a group goes on.
        self._signal_groups(signal.SIGSTOP)
        own = set[psutil.Process]()
        for _ in range(STOP_ROUNDS):
            new_processes = self._find_own() - own
            for process in new_processes:
                self._session.send(process, signal.SIGSTOP)
            own |= new_processes
            if not new_processes:
                break
        for process in own:
            self._session.send(process, signal.SIGKILL)
        self._signal_groups(signal.SIGCONT)
        return own

    def _find_own(self) -> set[psutil.Process]:
        """Return the session's own processes, and note the process groups of all of them."""
        own = set[psutil.Process]()
        for process in self._session.find():
            with contextlib.suppress(OSError):
                self._groups.add(os.getpgid(process.pid))
            if self._session.is_own(process):
                own.add(process)
        return own

    def _signal_groups(self, number: signal.Signals) -> None:
        for group in self._groups - {os.getpgrp()}:
            with contextlib.suppress(OSError):
                os.killpg(group, number)


def _left_over(session: SessionProcesses) -> Sequence[LeftOver]:
    """Return the session's processes that are still there after a wait."""
    # The kernel takes a moment for a killed one, on a busy machine a longer one.
    _, alive = psutil.wait_procs([*session.find()], timeout=EXIT_WITHIN_S)
    left = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
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
