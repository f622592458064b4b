"""Answer of a process beside that reads with the worker's account: nothing waits for a disk.

Standard library only, like all of the supervisor's program (`subreaper.py`).
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import file_count, worker_start
else:  # in the subreaper's program, which extends sys.path
    import file_count
    import worker_start

MAX_BYTES = 2**17


def answer_of(read: Callable[[], bytes], spec: dict[str, Any], within_s: float) -> bytes | None:
    """Return what `read` returns in a process with the worker's account; None if it is late."""
    parent = os.getpid()
    answer, answer_write = os.pipe2(os.O_CLOEXEC)
    reader = os.fork()
    if reader == 0:
        _answer_in_child(read, answer_write, spec, parent)
    os.close(answer_write)
    try:
        return _read_to_end(answer, time.monotonic() + within_s)
    finally:
        os.close(answer)
        with contextlib.suppress(OSError):
            os.kill(reader, signal.SIGKILL)  # not reaped, so the PID is still its own


def _read_to_end(answer: int, until: float) -> bytes | None:
    """Return an answer up to its end; None if there is none, or it comes late."""
    content = b""
    while len(content) < MAX_BYTES and (left := until - time.monotonic()) > 0:
        if not select.select([answer], [], [], left)[0]:
            break
        if not (piece := os.read(answer, MAX_BYTES)):
            return content or None
        content += piece
    return None


def _answer_in_child(
    read: Callable[[], bytes], answer: int, spec: dict[str, Any], parent: int
) -> None:
    """Answer in the forked process; never returns."""
    try:
        worker_start.set_signals_right()
        worker_start.change_account(spec)
        worker_start.die_with(parent)
        os.nice(file_count.NICE)
        content = memoryview(read())
        while content:
            content = content[os.write(answer, content) :]
    finally:
        os._exit(0)
