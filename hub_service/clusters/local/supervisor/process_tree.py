"""Descendants of a process: list, signal, kill. Standard library only (`subreaper.py`)."""

import contextlib
import os
import signal

STOP_ROUNDS = 50


def tasks_of_machine() -> int:
    """Return the number of processes and threads on the whole machine."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[3].partition(b"/")[2])


def max_tasks_of_machine() -> int:
    """Return the maximum of processes and threads, by kernel and control groups."""
    bounds = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123
        group = next((line[3:].strip() for line in file if line.startswith("0::")), "")
        while group := group.rstrip("/"):
            bounds.append(f"/sys/fs/cgroup{group}/pids.max")
            group = group.rpartition("/")[0]
        bounds.append("/sys/fs/cgroup/pids.max")  # in a container, its own group is the root
    found = []
    for bound in bounds:
        with (
            contextlib.suppress(OSError, ValueError),  # "max", or no such file
            open(bound, encoding="utf-8") as file,  # noqa: PTH123
        ):
            found.append(int(file.read()))
    return min(found, default=1 << 22)  # the kernel's own bound


def threads_below(root: int) -> dict[int, int]:
    """Return the descendants, parents before children, with their numbers of threads."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[17])))
    found, threads = [root], {}
    for pid in found:
        for child, thread_count in children.get(pid, ()):
            found.append(child)
            threads[child] = thread_count
    return threads


def descendants(root: int) -> list[int]:
    """Return the descendants, parents before children."""
    return list(threads_below(root))


def kill_all(pids: list[int], number: int) -> None:
    """Send a signal to each; processes that are gone or of other accounts are skipped."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end_all(root: int) -> None:
    """Kill all descendants, however fast they fork; later ones are left."""
    doomed = descendants(root)
    # Stop all before the kill: a process killed alone is replaced by its sibling.
    for _ in range(STOP_ROUNDS):
        before = set(doomed)
        kill_all(doomed, signal.SIGSTOP)
        doomed = descendants(root)
        if before.issuperset(doomed):
            break
    kill_all(doomed, signal.SIGKILL)
