"""Identity checks and signals for processes through pidfds, safe against reused PIDs.

A PID identifies a process only until it ends; a pidfd (Linux) identifies it for ever. Polling a
pidfd is one cheap call, while reading `/proc` makes the kernel compute unneeded statistics. Without
a pidfd the result is unknown, and the caller must read `/proc`.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import psutil

MAX_HANDLES = 384
"""Bound of open handles: they are file descriptors, often limited to 1,024 per process."""


class _Handle:
    """The pidfd of one process; closed with this object."""

    __slots__ = ("_file", "_poll")

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._file)

    def still_runs(self) -> bool:
        return not self._poll.poll(0)


class PidfdHandles:
    """Open pidfds by PID."""

    def __init__(self) -> None:
        self._handles: dict[int, _Handle] = {}

    def open_handle(self, pid: int) -> None:
        """Open a pidfd for the process that has this PID now, if possible.

        If a later `still_runs` returns True, everything read in between belongs to this process.
        """
        if self.still_runs(pid):
            return
        self._handles.pop(pid, None)
        if len(self._handles) < MAX_HANDLES:
            # OSError: the process has ended, or too many files are open; AttributeError: not Linux.
            with contextlib.suppress(OSError, AttributeError):
                self._handles[pid] = _Handle(pid)

    def still_runs(self, pid: int) -> bool:
        """Return True if the process of `open_handle` certainly still has this PID."""
        handle = self._handles.get(pid)
        return handle is not None and handle.still_runs()

    def retain(self, pids: AbstractSet[int]) -> None:
        """Close the pidfds of all processes except `pids`."""
        for pid in self._handles.keys() - pids:
            del self._handles[pid]


SAME_START_S = 0.005
"""Tolerance for start times: half of the kernel's tick of 10 ms."""


def send(
    pid: int,
    created: float,
    number: signal.Signals,
    only_if: Callable[[psutil.Process], bool] = lambda _process: True,
) -> bool:
    """Signal the process with this PID and start time; return False if it has ended.

    `created` is the value of psutil.Process.create_time(). A process for which `only_if` is False
    gets no signal.

    Raises:
        PermissionError: the process belongs to an account that we may not signal.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The pidfd belongs to the PID's current process: compare its start time.
        found = psutil.Process(pid)
        if abs(found.create_time() - created) > SAME_START_S or not only_if(found):
            return False
        signal.pidfd_send_signal(process, number)
    except (ProcessLookupError, psutil.Error):
        return False
    finally:
        os.close(process)
    return True
