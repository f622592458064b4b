"""Order of a stop: the moment at which each of a worker's processes gets SIGTERM.

A signal to the whole group kills loading processes, pools and `| tee` at once, and the training
with them before it has saved. So the main process is first, through shells; a reader of a pipe
comes after its writers; the rest comes when all of the first have ended, or near the grace's end.
No process gets it twice: a second one often means an immediate exit. The tree is read from /proc.
Standard library only (`subreaper.py`).
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import process_tree
else:
    import process_tree  # in the subreaper's program, which extends sys.path

POLL_EVERY_S = 0.05
REST = 50
"""Pause after a poll, as a multiple of its CPU time: many workers may stop at once."""
SHARE_FOR_THE_REST = 0.25
"""Share of the grace that is left when the rest gets SIGTERM, though the first still run."""

DRAIN_S = 2.0
"""Seconds, at most a quarter of the grace, in which a reader without writers may end by itself."""

SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "tcsh", "yash", "zsh"}
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class TreeProcess(NamedTuple):
    """One process below the supervisor."""

    pid: int
    started: int
    """Clock ticks since the boot: with the PID it identifies the process for good."""
    parent: int

    @property
    def identity(self) -> tuple[int, int]:
        """Return PID and start: no later process of this PID has both."""
        return self.pid, self.started


class StopOrder:
    """SIGTERM of one worker's processes, each once and in its turn."""

    def __init__(
        self, root: int, main: int, grace_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin the stop of all processes below `root`, of which `main` is the worker's first.

        Without a `main` process, which may have ended, all of them are the rest.
        """
        now = clock()
        self._clock = clock
        self._root = root
        self._signal_rest_at = now + grace_s * (1 - SHARE_FOR_THE_REST)
        self._drain_s = min(DRAIN_S, grace_s / 4)
        self._last_writer_at: dict[tuple[int, int], float] = {}
        """Time at which a reader's pipe had a writer, or was first seen."""
        self._signalled: set[tuple[int, int]] = set()
        self._earliest_poll = now
        self.next_poll = now
        """Time of the next `send_due`, by the clock."""
        live = processes_below(root)
        self._present_at_start = {process.identity for process in live.values()}
        self._first_processes = {live[pid].identity for pid in _first_pids(live, main)}

    def poll_soon(self) -> None:
        """Poll soon, since a process has ended."""
        self.next_poll = self._earliest_poll

    def send_due(self, spared: int = 0) -> None:
        """Send SIGTERM to all processes whose turn it is; `spared` is the supervisor's own."""
        began, cpu = self._clock(), time.thread_time()
        live = processes_below(self._root)
        live.pop(spared, None)
        waiting = self._waiting_readers([*live.values()])
        # Parents before children: a shell must not start its next command meanwhile.
        due = [
            p for p in live.values() if p.identity in self._first_processes and p.pid not in waiting
        ]
        if not due or began >= self._signal_rest_at:
            # Processes started during the stop save something: they are left to their parents.
            due = [
                p
                for p in live.values()
                if p.pid not in waiting
                and (p.identity in self._present_at_start or p.parent == self._root)
            ]
        for process in due:
            self._terminate(process)
        self._earliest_poll = self._clock() + REST * (time.thread_time() - cpu)
        self.next_poll = max(self._earliest_poll, began + POLL_EVERY_S)

    def _terminate(self, process: TreeProcess) -> None:
        """Send SIGTERM to a process that has not got it yet."""
        if process.identity in self._signalled:
            return
        try:
            _send_sigterm(process)
        except OSError as failed:
            if failed.errno in OUT_OF_RESOURCES:
                return  # repeated at the next poll
        self._signalled.add(process.identity)

    def _waiting_readers(self, live: Collection[TreeProcess]) -> set[int]:
        """Return the PIDs of readers that get no signal yet, since their input may go on.

        Another process can still write to it, or has just ended. Readers that wait for each other
        in a ring (FIFOs, coprocesses) do not wait. Without writers, `tee` reads to the end and
        ends: a signal would only cut its output. A program that handles SIGTERM needs no such time.
        """
        now = self._clock()
        readers = {
            process: pipe
            for process in live
            if process.identity not in self._signalled and (pipe := _pipe_at_stdin(process.pid))
        }
        with_writers = _readers_with_writers(readers, live) if readers else set()
        for process, pipe in readers.items():
            if process in with_writers or pipe.startswith("pipe:"):
                self._last_writer_at.setdefault(process.identity, now)
            if process in with_writers:
                self._last_writer_at[process.identity] = now
        return {
            process.pid
            for process in readers
            if process in with_writers
            or (
                now < self._last_writer_at.get(process.identity, -DRAIN_S) + self._drain_s
                and signal.SIGTERM not in _signals(process.pid, "SigCgt")
            )
        }


def _readers_with_writers(
    readers: dict[TreeProcess, str], live: Iterable[TreeProcess]
) -> set[TreeProcess]:
    """Return the readers whose pipe another process, outside of a ring with it, can write to."""
    writers: dict[str, set[TreeProcess]] = {pipe: set() for pipe in readers.values()}
    for process in live:
        for pipe in _pipes_written_by(process.pid, writers.keys()):
            writers[pipe].add(process)
    # Pipes that a pipe's writers read, and so wait for.
    waits_for = {
        p: {readers[writer] for writer in writers[p] if writer in readers} for p in writers
    }
    return {
        reader
        for reader, pipe in readers.items()
        for writer in writers[pipe] - {reader}
        if writer not in readers or pipe not in _reachable(waits_for, readers[writer])
    }


def processes_below(root: int) -> dict[int, TreeProcess]:
    """Return the running descendants, parents before children, by PID; no zombies."""
    if not os.path.exists("/proc/thread-self/children"):  # noqa: PTH110  an option of the kernel
        found = map(_read_process, process_tree.descendants(root))
        return {process.pid: process for process in found if process is not None}
    live: dict[int, TreeProcess] = {}
    parents = [root]
    for parent in parents:
        for process in map(_read_process, _children(parent)):
            if process is not None and process.pid not in live:
                live[process.pid] = process
                parents.append(process.pid)
    return live


def _children(pid: int) -> list[int]:
    """Return a process's children, which the kernel lists by thread without a search."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # the thread or the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  pathlib costs memory
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                children += map(int, file.read().split())
    return children


def _read_process(pid: int) -> TreeProcess | None:
    """Return a process, if it runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else TreeProcess(pid, int(fields[19]), int(fields[1]))


def _first_pids(live: dict[int, TreeProcess], main: int) -> list[int]:
    """Return the main process and, below shells, their children down to the first programs.

    Of a shell with a trap for SIGTERM, children in the background are left to the trap; its
    foreground child is not, since a trap runs only after that has ended.
    """
    first = [pid for pid in (main,) if pid in live]
    for pid in first:
        if _is_shell(pid):
            traps = signal.SIGTERM in _signals(pid, "SigCgt")
            children = (child.pid for child in live.values() if child.parent == pid)
            first += [child for child in children if not (traps and _in_background(child))]
    return first


def _is_shell(pid: int) -> bool:
    """Return True if a process runs a shell, also one of busybox."""
    name = os.path.basename(_link_target(f"/proc/{pid}/exe").removesuffix(" (deleted)"))  # noqa: PTH119
    if name == "busybox":
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                words = [os.path.basename(word) for word in file.read().split(b"\0")]  # noqa: PTH119
        except OSError:
            return False
        name = os.fsdecode(next((word for word in words if word != b"busybox"), b""))
    return name in SHELLS


def _in_background(pid: int) -> bool:
    """Return True if a shell started a process by `&`, with SIGINT and SIGQUIT ignored.

    Programs often handle SIGINT themselves; bash ignores SIGQUIT itself.
    """
    ignored = _signals(pid, "SigIgn")
    return signal.SIGQUIT in ignored and (signal.SIGINT in ignored or not _is_shell(pid))


def _signals(pid: int, field: str) -> set[int]:
    """Return the signals in a mask of a process's status."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            line = next(line for line in file if line.startswith(field))
    except (OSError, StopIteration):
        return set()
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def _link_target(path: str) -> str:
    """Return where a link in /proc points to; "" if it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""  # it has ended, or is another account's


def _pipe_at_stdin(pid: int) -> str:
    """Return the name of the pipe at a process's standard input; "" if it is none.

    A FIFO's name is its path, as a file's is. No file is opened or examined: its disk may hang.
    """
    name = _link_target(f"/proc/{pid}/fd/0")
    return name if name.startswith("pipe:") or _is_path(name) else ""


def _is_path(name: str) -> bool:
    return name.startswith("/") and not name.startswith("/dev/")


def _pipes_written_by(pid: int, pipes: Iterable[str]) -> list[str]:
    """Return which of the pipes a process can write to."""
    try:
        fds = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return []
    links = {fd: _link_target(f"/proc/{pid}/fd/{fd}") for fd in fds}
    return [link for fd, link in links.items() if link in pipes and _is_writable(pid, fd)]


def _is_writable(pid: int, fd: str) -> bool:
    """Return True if a process can write to its descriptor."""
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:  # noqa: PTH123
            flags = next(line for line in file if line.startswith(b"flags:"))
    except (OSError, StopIteration):
        return False
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Return the nodes that a walk from `start` reaches, itself included."""
    reached = [start]
    for node in reached:
        reached += [other for other in edges.get(node, ()) if other not in reached]
    return set(reached)


def _send_sigterm(process: TreeProcess) -> None:
    """Send SIGTERM to this very process.

    Raises:
        OSError: it cannot be sent, or the process has ended.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except OSError as failed:
        if failed.errno != errno.ENOSYS:  # a kernel without pidfds
            raise
        os.kill(process.pid, signal.SIGTERM)
        return
    try:
        found = _read_process(process.pid)
        if found is not None and found.started == process.started:
            signal.pidfd_send_signal(fd, signal.SIGTERM)
    finally:
        os.close(fd)
