"""Supervisor of one worker's attempt: starts it, logs its output, stops it, reports its exit.

Half of a program of its own (`subreaper.py`, its parent, is the other), standard library only,
detached from the service, which it outlives. Input and output are files in its DIRECTORY
(`attempt.py` names them). The lock there makes a second start harmless. Its only later input is
SIGTERM: stop the worker. If it is killed, the worker dies with it; an earlier exit stays valid.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import (
        checkpoint_check,
        file_count,
        leftovers,
        process_tree,
        stop_order,
        worker_start,
    )
    from runai.hub_service.processes import folder_lock
else:  # in the subreaper's program, which extends sys.path
    import checkpoint_check
    import file_count
    import folder_lock
    import leftovers
    import process_tree
    import stop_order
    import worker_start

if TYPE_CHECKING:
    from runai.hub_service.clusters.local.supervisor.exit_notes import ExitNotes

PR_SET_CHILD_SUBREAPER = 36
LEFTOVERS_END_S = 0.5
"""Seconds in which processes that a program leaves, such as a pool's, may end by themselves."""
LEFTOVERS_GRACE_S = 1.0
"""Seconds for them to save."""
HOPELESS_AFTER_S = 20.0
"""Seconds until survivors of SIGKILL (stuck in a driver) are left to the kernel."""

SUPERVISOR_BYTE = 0
"""Byte of the lock file that shows that the supervisor of this start lives."""
COUNT_EVERY_S = 1.0


def lock_byte(directory: str, byte: int) -> bool:
    """Lock a byte of the lock file until this process ends; False if taken."""
    fd = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Other processes can query the holder of a record lock without taking it (attempt.py).
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError:
        return False
    return True  # the descriptor stays open: the kernel frees the lock when this process ends


def lock_tmp_dir(folder: str) -> int:
    """Lock a worker's TMPDIR; return the descriptor, or -1 if there is none."""
    with contextlib.suppress(OSError):
        return folder_lock.locked(folder)
    return -1


def adopt_orphans() -> bool:
    """Become the subreaper of all descendants; return False if the kernel cannot."""
    adopted: int = worker_start.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return adopted == 0


def start_time_of(pid: int) -> float:
    """Return when a process started, in Unix seconds, as psutil computes it."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as file:  # noqa: PTH123
        boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


HEAD_BYTES = 2**20
"""Size of a log's first file, which is never removed: it names configuration, seed and versions."""


class Log:
    """Rotated log: a first file that stays, and numbered ones of bounded size and number.

    A name also has the lines and bytes before the file, so that a reader can count what is
    missing: `log-000012-1028009-103828909.txt`; with `+` if the file begins within a line.
    """

    def __init__(self, directory: str, max_bytes: int, max_files: int) -> None:
        """Open the first file."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._room_bytes = min(HEAD_BYTES, max_bytes)
        """Bytes that the current file still takes."""
        self._lines = self._bytes = 0
        self._is_within_line = False
        self._path = f"{directory}/log-000001.txt"
        self._number = 1
        self._later_paths: list[str] = []
        """Paths of the files after the first."""
        self._fd = -1
        with contextlib.suppress(OSError):
            self._open()

    def note(self, text: str) -> None:
        """Append a line of the platform's own."""
        self.write(b"\n" if self._is_within_line else b"")
        self.write(f"runai: {text}\n".encode())

    def write(self, piece: bytes) -> None:
        """Append; a full disk loses output, never the worker."""
        while len(piece) > self._room_bytes:
            # Split between lines; a line in progress and one longer than a file are cut.
            end = piece.rfind(b"\n", 0, self._room_bytes) + 1
            if not end and (self._is_within_line or self._room_bytes == self._max_bytes):
                end = self._room_bytes
            self._append(piece[:end])
            piece = piece[end:]
            self._next_file()
        self._append(piece)

    def _append(self, piece: bytes) -> None:
        """Write to the current file, and count."""
        if not piece:
            return
        self._room_bytes -= len(piece)
        self._bytes += len(piece)
        self._lines += piece.count(b"\n")
        self._is_within_line = not piece.endswith(b"\n")
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._open()
            while piece:
                piece = piece[os.write(self._fd, piece) :]

    def _next_file(self) -> None:
        """Begin a new file, and remove the oldest but the first if there are too many."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._number += 1
        self._room_bytes = self._max_bytes
        mark = "+" if self._is_within_line else ""
        name = f"log-{self._number:06d}-{self._lines}-{self._bytes}{mark}.txt"
        self._path = f"{self._directory}/{name}"
        self._later_paths.append(self._path)
        with contextlib.suppress(OSError):
            if len(self._later_paths) > self._max_files:
                os.unlink(self._later_paths.pop(0))  # noqa: PTH108
        with contextlib.suppress(OSError):
            self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class Supervisor:
    """The worker's only parent: its orphans become children of it (subreaper)."""

    def __init__(self, directory: str, status_fd: int, notes: "ExitNotes") -> None:
        """Install the signal handlers before anything else can happen."""
        self.directory = directory
        self.notes = notes
        self.status_fd = status_fd
        os.set_inheritable(status_fd, False)  # the worker would keep it open
        os.chdir("/")
        os.umask(0o077)
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self.worker = 0
        self.exit_code: int | None = None
        self.stop_requested = False
        self.killed = False
        self.leftovers_text = ""
        """Processes that still worked when the program had ended by itself."""
        self.leftovers_until: float | None = None
        self.deadline: float | None = None
        self.order: stop_order.StopOrder | None = None
        self.is_childless = False
        self.max_processes = 0
        self.max_tasks = 0
        self.tasks_seen = 0
        self.start_mtime_ns = 0
        """Time of the worker's start at its checkpoint directory; 0: not known."""
        self.is_home_away = False
        """True if the start failed because the account's home cannot be reached."""
        self.verdict = ""
        """Why the supervisor killed the worker itself."""

    def run(self) -> None:
        """Run until the worker and all its descendants have ended."""
        if not lock_byte(self.directory, SUPERVISOR_BYTE) or self._exists("supervisor.json"):
            return
        with open(f"{self.directory}/spec.json", encoding="utf-8") as file:  # noqa: PTH123
            spec: dict[str, Any] = json.load(file)
        environment = self._read_environment()
        me = {"pid": os.getpid(), "created": start_time_of(os.getpid())}
        self.notes.enqueue("supervisor.json", me)
        self.notes.until_written()  # a later supervisor must see it before anything runs
        self.notes.reserve("ended.json", "exit.json")
        tmp_dir = lock_tmp_dir(spec["tmp_dir"])
        log = Log(self.directory, spec["log_bytes"], spec["log_files"])
        text = ""
        if not adopt_orphans():
            text = "the kernel cannot adopt orphaned processes (PR_SET_CHILD_SUBREAPER)"
        else:
            text = self._start_and_watch(spec, environment, log)
        exit_note = {
            "exit_code": worker_start.CANNOT_START if text else self.exit_code,
            "told": self.stop_requested,
            "killed": self.killed,
            "ended": time.time(),
            "left": self.leftovers_text,
            "text": text or self.verdict,
            "is_home_away": self.is_home_away,
        }
        self.notes.enqueue("exit.json", exit_note)
        self.notes.until_written()
        if tmp_dir >= 0:
            os.close(tmp_dir)  # the check goes on in a process of its own
        if self.stop_requested:
            checkpoint_check.begin_check(self.directory, spec, self.start_mtime_ns)

    # -- starting --------------------------------------------------------------------------------

    def _exists(self, name: str) -> bool:
        return os.path.exists(f"{self.directory}/{name}")  # noqa: PTH110

    def _read_environment(self) -> dict[str, str]:
        """Read the worker's environment, and delete its file."""
        path = f"{self.directory}/environment.json"
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            environment: dict[str, str] = json.load(file)
        os.unlink(path)  # noqa: PTH108  it holds secrets
        return environment

    def _start_and_watch(self, spec: dict[str, Any], environment: dict[str, str], log: Log) -> str:
        """Start the worker and watch it to the end; return why it cannot start, or ""."""
        output, output_write = os.pipe2(os.O_CLOEXEC)
        started = worker_start.start(spec, environment, output_write)
        if started.lacks_room:
            os.close(self.status_fd)  # so that a stop can arrive meanwhile
            self.status_fd = -1
            log.write(f"{started.why}; it is tried again\n".encode())
        until = time.monotonic() + spec["room_seconds"]
        while started.lacks_room and time.monotonic() < until:
            started.reap()
            if self._wait_for_stop(worker_start.AGAIN_EVERY_S):
                return ""
            started = worker_start.start(spec, environment, output_write)
        os.close(output_write)
        self.worker, self.is_childless, self.start_mtime_ns = (
            started.pid,
            not started.pid,
            started.start_mtime_ns,
        )
        self.is_home_away = started.is_home_away
        if started.why:
            log.write(f"{started.why}\n".encode())
        else:
            began = {"pid": self.worker, "created": start_time_of(self.worker)}
            self.notes.enqueue("process.json", began)
        if self.status_fd >= 0:
            os.close(self.status_fd)  # notifies the service
        self.max_processes, self.tasks_seen = (
            spec["most_processes"],
            process_tree.tasks_of_machine(),
        )
        self.max_tasks = min(spec["most_tasks"], process_tree.max_tasks_of_machine() // 2)
        self._watch(output, log, spec["grace_seconds"], file_count.FileCount(spec))
        if self.verdict:
            log.note(f"it {self.verdict}")
        return started.why

    def _wait_for_stop(self, seconds: float) -> bool:
        """Wait so long, or until a stop arrives; return True if one has."""
        until = time.monotonic() + seconds
        while not self.stop_requested and (left := until - time.monotonic()) > 0:
            if select.select([self.wake_read], [], [], left)[0]:
                self.stop_requested = signal.SIGTERM in os.read(self.wake_read, 512)
        return self.stop_requested

    # -- watching --------------------------------------------------------------------------------

    def _watch(self, output: int, log: Log, grace_s: float, files: file_count.FileCount) -> None:
        """Copy output, handle signals and enforce limits until no process is left."""
        os.set_blocking(output, False)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        give_up_at: float | None = None
        while not self.is_childless:
            wait = COUNT_EVERY_S
            next_poll = self.order.next_poll if self.order is not None else self.leftovers_until
            for due in (self.deadline, next_poll):
                if due is not None:
                    wait = min(wait, max(0.0, due - time.monotonic()))
            for fd, _ in poll.poll(wait * 1000 + 1):
                if fd == self.wake_read:
                    self._on_signals(os.read(fd, 512), grace_s)
                elif not copy_output(output, log):
                    poll.unregister(output)
            self._enforce_limits(files)
            self.notes.write_queued()
            if self.exit_code is not None:
                self._reap()  # it may have waited for its note
                self._end_leftovers(log, spared=files.pid)
            if self.order is not None and time.monotonic() >= self.order.next_poll:
                self.order.send_due(spared=files.pid)
            if self.deadline is not None and time.monotonic() >= self.deadline:
                if (
                    self.stop_requested or self.exit_code is None
                ):  # else only what a finished one has left
                    left = stop_order.processes_below(os.getpid()).keys() - {files.pid}
                    self.killed = self.killed or bool(left)
                give_up_at = give_up_at or time.monotonic() + HOPELESS_AFTER_S
                process_tree.kill_all(process_tree.descendants(os.getpid()), signal.SIGKILL)
                self.deadline = time.monotonic() + 0.1  # orphans arrive here: check again
                if time.monotonic() > give_up_at:
                    break
        copy_output(output, log)

    def _enforce_limits(self, files: file_count.FileCount) -> None:
        """Kill a worker that uses too much of a resource it shares with its neighbours."""
        if self.verdict:
            return
        if self.exit_code is None:
            files.poll()
        if too_many := self._exceeded_limit():
            self.verdict = f"had more than {too_many} at once, so all of them were ended"
        elif files.is_exceeded:
            self.verdict = (
                f"had more than {files.max_files:,} files in its own directory "
                "(that of RUNAI_CHECKPOINT_DIR), so it was ended"
            )
        else:
            return
        process_tree.end_all(os.getpid())
        self.deadline = time.monotonic()  # repeated until none is left

    def _exceeded_limit(self) -> str:
        """Return the exceeded limit in words; "" if none is."""
        # Cheap check first: the machine's total, which bounds the worker's.
        tasks = process_tree.tasks_of_machine()
        if tasks - self.tasks_seen < min(self.max_processes, self.max_tasks) // 2:
            self.tasks_seen = min(self.tasks_seen, tasks)
            return ""
        self.tasks_seen = tasks
        threads = process_tree.threads_below(os.getpid())
        if len(threads) > self.max_processes:
            return f"{self.max_processes} processes"
        if sum(threads.values()) > self.max_tasks:
            return f"{self.max_tasks} processes and threads"
        return ""

    def _on_signals(self, numbers: bytes, grace_s: float) -> None:
        """Stop the worker at the first SIGTERM; reap children at SIGCHLD."""
        if signal.SIGTERM in numbers and not self.stop_requested and self.exit_code is None:
            self.stop_requested = True
            self._begin_stop(self.worker, grace_s)
        if signal.SIGCHLD in numbers:
            if self.order is not None:
                self.order.poll_soon()
            self._reap()

    def _end_leftovers(self, log: Log, spared: int) -> None:
        """Stop the processes that a program left when it ended; name them if they work on."""
        now = time.monotonic()
        if self.is_childless or self.order is not None or now < (self.leftovers_until or now):
            return
        names = [] if self.verdict else leftovers.names_of_working(os.getpid(), spared)
        if names and self.leftovers_until is None:
            self.leftovers_until = now + LEFTOVERS_END_S
            return
        if names:
            self.leftovers_text = leftovers.sentence(names)
            log.note(self.leftovers_text)
        self._begin_stop(0, LEFTOVERS_GRACE_S)

    def _begin_stop(self, main: int, grace_s: float) -> None:
        """Stop all processes, `main` first (0: none); kill those left after the grace."""
        self.deadline = time.monotonic() + grace_s
        self.order = stop_order.StopOrder(os.getpid(), main, grace_s)

    def _reap(self) -> None:
        """Reap ended children; the worker only once its exit is noted."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.is_childless = True
                return
            if ended is None:
                return
            if ended.si_pid == self.worker:
                if self.exit_code is None:
                    by_itself = ended.si_code == os.CLD_EXITED
                    self.exit_code = ended.si_status if by_itself else -ended.si_status
                    self._note_exit()
                if not self.notes.write_queued():
                    return
            os.waitpid(ended.si_pid, 0)

    def _note_exit(self) -> None:
        """Record the worker's exit before reaping it: after a kill the subreaper reads it.

        The note comes before the leftovers' end, which may take a grace period. On a full disk the
        leftovers end first, and the worker is not reaped before there is room.
        """
        note = {"exit_code": self.exit_code, "told": self.stop_requested, "text": self.verdict}
        self.notes.enqueue("ended.json", note)


def copy_output(output: int, log: Log) -> bool:
    """Copy available output to the log; return True if more may come."""
    try:
        while piece := os.read(output, 65536):
            log.write(piece)
    except BlockingIOError:
        return True
    return False
