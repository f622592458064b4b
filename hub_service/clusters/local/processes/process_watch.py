"""Watch and signal processes that are not children and may outlive the service.

A pidfd identifies a process for good and becomes readable at its end; a PID alone may be reused.
Kernels without pidfds are polled twice a second.
"""

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from runai.hub_service.model.records import Process

SAME_START_S = 2.0
"""Tolerance of start times of one process: the boot time moves with the clock."""

POLL_EVERY_S = 0.5
EXIT_WITHIN_S = 5.0

MAX_START_CHECKS = 10
START_CHECK_EVERY_S = 0.01
"""Ten checks, 10 ms apart: a process without an environment after them was started without."""


def lasting(process: Process) -> Process:
    """Return a process with its start in ticks, which survives clock changes, if it lives."""
    try:
        found = psutil.Process(process.pid)
        if not _is_close(found.create_time(), process.created):
            return process
        return replace(process, ticks=_ticks(process.pid), boot=_boot())
    except (psutil.Error, OSError, ValueError):
        return process


def at_present_clock(process: Process, booted: float | None = None) -> Process:
    """Return a process with its start time by the present clock, for comparisons.

    `booted` is `psutil.boot_time()`, from callers with hundreds of processes.
    """
    if process.ticks is None or process.boot != _boot():
        return process
    # Computed like psutil does, without a read; the process may have ended.
    since = process.ticks / os.sysconf("SC_CLK_TCK")
    return replace(process, created=since + (psutil.boot_time() if booted is None else booted))


def is_same(one: Process, other: Process) -> bool:
    """Return True if both identify one process, whatever the clock was at each time."""
    if one.ticks is not None and other.ticks is not None:
        return (one.pid, one.ticks, one.boot) == (other.pid, other.ticks, other.boot)
    return one.pid == other.pid and _is_close(one.created, other.created)


def _lives(process: Process) -> bool:
    """Return True if the PID still belongs to this process.

    Raises:
        psutil.NoSuchProcess: the PID is unused.
    """
    found = psutil.Process(process.pid)
    if process.ticks is None:
        return _is_close(found.create_time(), process.created)
    try:
        return process.boot == _boot() and _ticks(process.pid) == process.ticks
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(process.pid) from error


def is_running(process: Process) -> bool:
    """Return True if this very process runs, or waits to be reaped."""
    with contextlib.suppress(psutil.Error):
        return _lives(process)
    return False


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class ProcessWatch:
    """Watch of one process: calls back once at its end, and signals it until then."""

    def __init__(self, pid: int, identity: Process | None, on_exit: Callable[[], None]) -> None:
        """Start watching a PID that belongs to `identity`; None: to what the caller has started."""
        self.pid = pid
        self._identity = identity
        self._on_exit = on_exit
        self._fd = -1
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._begin_watch()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif self._is_running():
                os.kill(self.pid, number)

    def close(self) -> None:
        """Stop watching; the process keeps running."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_watch(self) -> None:
        """Watch by a pidfd where the kernel has them, else by a timer."""
        with contextlib.suppress(OSError):  # ended already, or a kernel without pidfds
            self._fd = os.pidfd_open(self.pid)
        if self._fd >= 0 and self._is_running():
            self._loop.add_reader(self._fd, self._on_end)
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._poll()

    def _poll(self) -> None:
        if self._is_running():
            self._timer = self._loop.call_later(POLL_EVERY_S, self._poll)
        else:
            self._timer = self._loop.call_soon(self._on_end)

    def _is_running(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return self._identity is None or _lives(self._identity)
        except psutil.NoSuchProcess:
            return False
        except OSError:
            return True  # no free descriptor for the check: repeated later

    def _on_end(self) -> None:
        """Stop watching, reap a child, and call back."""
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # a child stays a zombie until it is reaped
        self._on_exit()


def end_tree(process: Process) -> None:
    """Kill a process, its group and all its descendants, at once."""
    try:
        root = psutil.Process(process.pid)
        if not _lives(process):
            return
        doomed = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(OSError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    _kill(doomed)


def kill_leftovers(
    worker: str, checkpoint_dir: str, since: float, identity: Process | None = None
) -> None:
    """Kill the processes that a killed supervisor left; return when they are gone.

    `since` is the worker's start by the clock of that time; `identity`, its process, allows to
    correct it. The kernel kills the worker's first process with its supervisor, but not the
    descendants. Their environment has the worker's name and its checkpoint directory: the name
    alone may belong to another installation's worker on this machine.
    """
    if identity is not None and identity.ticks is not None and identity.boot == _boot():
        booted_then = identity.created - identity.ticks / os.sysconf("SC_CLK_TCK")
        since += psutil.boot_time() - booted_then
    until = time.monotonic() + EXIT_WITHIN_S
    checks_left = MAX_START_CHECKS
    while (left := until - time.monotonic()) > 0:
        doomed, starting = _find_marked(worker, checkpoint_dir, since - SAME_START_S)
        _kill(doomed)
        psutil.wait_procs(doomed, timeout=left)
        if doomed:
            continue  # killed ones may have forked since the search
        if not starting or not checks_left:
            return
        checks_left -= 1
        time.sleep(START_CHECK_EVERY_S)


def _find_marked(
    worker: str, checkpoint_dir: str, since: float
) -> tuple[list[psutil.Process], bool]:
    """Return the processes with a worker's names, and True if another has no environment yet.

    Between exec and the set-up of its stack a process has no environment for an instant.
    """
    marked, starting = [], False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.create_time() < since:
                continue
            environment = process.environ()
            names = environment.get("RUNAI_WORKER"), environment.get("RUNAI_CHECKPOINT_DIR")
            if names == (worker, checkpoint_dir):
                marked.append(process)
            elif not environment and process.exe():  # kernel threads run no file
                starting = True
    return marked, starting


def _kill(doomed: Sequence[psutil.Process]) -> None:
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _is_close(one: float, other: float) -> bool:
    """Return True if two start times can be those of one process."""
    return abs(one - other) <= SAME_START_S
