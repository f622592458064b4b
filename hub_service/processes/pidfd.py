"""Whether a process is still the one that was looked at: the kernel's own handle on it tells.

A number names a process only until that one ends; a handle (Linux: pidfd) names it for ever, and
one small call tells whether it has ended, where reading `/proc` makes the kernel add up what nobody
asked for. Where there is no handle nothing is known, and the caller must look. Used by `owners`.
"""

import contextlib
import os
import select
import signal
from collections.abc import Set as AbstractSet

import psutil

MOST = 384
"""Handles are open files, of which a process may often have no more than 1,024."""


class _Handle:
    """One process; let go of with this object."""

    __slots__ = ("_file", "_poll")

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._file)

    def lasts(self) -> bool:
        return not self._poll.poll(0)


class Lifetimes:
    """Holds on to processes by number."""

    def __init__(self) -> None:
        self._handles: dict[int, _Handle] = {}

    def hold(self, pid: int) -> None:
        """Take hold of who has this number now, if that can be done.

        What is read of a process after this, and before `lasts` says yes, is of this process.
        """
        if self.lasts(pid):
            return
        self._handles.pop(pid, None)
        if len(self._handles) < MOST:
            # OSError: it is gone, or too many files are open; AttributeError: not Linux.
            with contextlib.suppress(OSError, AttributeError):
                self._handles[pid] = _Handle(pid)

    def lasts(self, pid: int) -> bool:
        """Tell whether the process that was taken hold of surely still has this number."""
        handle = self._handles.get(pid)
        return handle is not None and handle.lasts()

    def retain(self, pids: AbstractSet[int]) -> None:
        """Let go of all processes but these."""
        for pid in self._handles.keys() - pids:
            del self._handles[pid]


SAME_START_S = 0.005
"""Start times come in ticks of 10 ms."""


def send(pid: int, created: float, number: signal.Signals) -> bool:
    """Signal the process that was started then; False if it is gone.

    `created` is as psutil.Process.create_time() gives it.

    Raises:
        PermissionError: it belongs to an account that we may not signal.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor is of whoever has the number now: is that the one who was meant?
        if abs(psutil.Process(pid).create_time() - created) > SAME_START_S:
            return False
        signal.pidfd_send_signal(process, number)
    except (ProcessLookupError, psutil.Error):
        return False
    finally:
        os.close(process)
    return True
