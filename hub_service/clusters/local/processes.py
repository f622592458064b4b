"""Watch and signal processes that are not our children and may outlive us.

Knows pidfds (a file descriptor names a process for good, and tells when it ends) and that a number
alone may by now be somebody else. Where the kernel has no pidfd it looks twice a second. Called by
`cluster`.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence

import psutil

from runai.hub_service.clusters.records import Process

__all__ = ["Watch", "end_tree", "kill_leftovers"]

SAME_START_S = 2.0
"""Starts of one process may be told this much apart: the boot time moves with the clock."""

LOOK_EVERY_S = 0.5
GONE_WITHIN_S = 5.0


class Watch:
    """One process: call back once when it has ended, and signal it until then."""

    def __init__(self, pid: int, created: float | None, on_exit: Callable[[], None]) -> None:
        """Begin to watch; `created` None trusts the number (we have just started it)."""
        self.pid = pid
        self._created = created
        self._on_exit = on_exit
        self._fd = -1
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._open()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif self._is_it():
                os.kill(self.pid, number)

    def close(self) -> None:
        """Stop watching; the process goes on."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # ended already, or a kernel without pidfds
            self._fd = os.pidfd_open(self.pid)
        if self._fd >= 0 and self._is_it():
            self._loop.add_reader(self._fd, self._ended)
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._look()

    def _look(self) -> None:
        if self._is_it():
            self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        else:
            self._timer = self._loop.call_soon(self._ended)

    def _is_it(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return self._created is None or _same(process.create_time(), self._created)
        except psutil.NoSuchProcess:
            return False

    def _ended(self) -> None:
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # if we started it, it stays a zombie until asked
        self._on_exit()


def end_tree(process: Process) -> None:
    """Kill a process, its group and everything below it, at once."""
    try:
        root = psutil.Process(process.pid)
        if not _same(root.create_time(), process.created):
            return
        doomed = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(OSError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    _kill(doomed)


def kill_leftovers(worker: str, since: float) -> None:
    """Kill what a worker has left whose supervisor was killed; return when it is gone.

    The kernel kills the worker's first process with its supervisor, but not what that has started.
    Those carry the worker's name in their environment.
    """
    doomed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.create_time() < since - SAME_START_S:
                continue
            if process.environ().get("RUNAI_WORKER") == worker:
                doomed.append(process)
    _kill(doomed)
    psutil.wait_procs(doomed, timeout=GONE_WITHIN_S)


def _kill(doomed: Sequence[psutil.Process]) -> None:
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME_START_S
