"""The processes below one: find them, tell them something, end them all.

Standard library only, as all of the supervisor's program is (`subreaper.py`).
"""

import contextlib
import os
import signal

STOP_ROUNDS = 50


def tasks_of_machine() -> int:
    """Return how many processes and threads there are on the whole machine."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[3].partition(b"/")[2])


def most_tasks_of_machine() -> int:
    """Return how many processes and threads there can be at once, for all who share the bound."""
    bounds = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123
        group = next((line[3:].strip() for line in file if line.startswith("0::")), "")
        while group := group.rstrip("/"):
            bounds.append(f"/sys/fs/cgroup{group}/pids.max")
            group = group.rpartition("/")[0]
        bounds.append("/sys/fs/cgroup/pids.max")  # of a container, which sees its own as the root
    found = []
    for bound in bounds:
        with (
            contextlib.suppress(OSError, ValueError),  # "max", or there is none
            open(bound, encoding="utf-8") as file,  # noqa: PTH123
        ):
            found.append(int(file.read()))
    return min(found, default=1 << 22)  # the kernel's own bound


def threads_below(root: int) -> dict[int, int]:
    """Return all processes below one, parents before children, and how many threads each has."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    told = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(told[1]), []).append((int(name), int(told[17])))
    found, threads = [root], {}
    for pid in found:
        for child, many in children.get(pid, ()):
            found.append(child)
            threads[child] = many
    return threads


def descendants(root: int) -> list[int]:
    """Return all processes below one, parents before children."""
    return list(threads_below(root))


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
