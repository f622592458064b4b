"""The processes below one: find them, tell them something, end them all.

Standard library only, as all of the supervisor's program is (`witness.py`).
"""

import contextlib
import os
import signal

__all__ = ["descendants", "end_all", "group_of", "kill_all", "tasks_of_machine"]

STOP_ROUNDS = 50


def tasks_of_machine() -> int:
    """Return how many processes and threads there are on the whole machine."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[3].partition(b"/")[2])


def descendants(root: int) -> list[int]:
    """Return all processes below one, parents before children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def group_of(pid: int) -> int:
    """Return a process's group, or 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def kill_all(pids: list[int], number: int) -> None:
    """Send a signal to each; one that is gone or not ours is passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end_all(root: int) -> None:
    """Kill all below a process, however fast they make others; who comes after that is left."""
    doomed = descendants(root)
    # Stopped before they are killed: who is killed alone is replaced by its neighbour.
    for _ in range(STOP_ROUNDS):
        before = set(doomed)
        kill_all(doomed, signal.SIGSTOP)
        doomed = descendants(root)
        if before.issuperset(doomed):
            break
    kill_all(doomed, signal.SIGKILL)
