"""Files of one start of one worker: instructions, and what its supervisor reports.

The directory identifies the start: after any crash its files show whether the worker was started,
runs, or has ended. `supervisor` and its `subreaper` share the names and formats:

    spec.json         what to run (service)        supervisor.json  it has started (supervisor)
    environment.json  0600, gone once read         process.json     the worker's program runs
    lock              held by both                 ended.json       exit of that program (either)
    log-000001.txt …  output                       exit.json        no process of it is left
    supervisor.log    errors of both               saved.json       new checkpoints of a stopped one
    code.json         digests of its programs (a process beside)
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from pydantic import ValidationError

from runai.hub_service.clusters.local.supervisor import process_tree
from runai.hub_service.clusters.local.supervisor.worker_start import NOT_NOW, ROOM_S
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import Code, Process
from runai.hub_service.processes.shell_environment import python_variables
from runai.hub_service.wire.program_schemas import StartNote

LOG = logging.getLogger("runai.reconciler")

SUPERVISOR = Path(__file__).parents[1] / "supervisor/subreaper.py"
STATUS_FD = 3

_FLOCK_FORMAT = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions of a supervisor, apart from the environment."""

    command: Sequence[str]
    workdir: str
    grace_seconds: float
    uid: int | None = None
    """None: the service's account; else change to this one, `gid` and `groups`."""
    gid: int = 0
    groups: Sequence[int] = ()
    user: str = ""
    home: str = ""
    """The account's home; a start that fails says if it is away."""
    umask: int = 0o022
    directories: Sequence[str] = ()
    """Created with the worker's account before it starts."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written with the worker's account before it starts: path and text."""
    python: Mapping[str, Any] = field(default_factory=dict)
    """The user's Python environment: `files` that show it is there (path and text), its `program`,
    the command to `make` it, and variables for a worker `without` it. {}: none is made."""
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 10
    room_seconds: float = ROOM_S
    """Seconds to wait for free space on the disk of its directories and files."""
    most_processes: int = 4096
    """Maximum of the worker's concurrent processes: more is a fork bomb, and all are killed."""
    most_tasks: int = 32_768
    """Maximum of concurrent processes and threads together, which the machine bounds too.

    A training has as many threads in each process as there are processors, for each library of its
    own: with eight loaders and three such on 128 processors 3,500, with eight GPUs 28,000. On a
    smaller machine, or in a smaller control group, one job may have half of them.
    """
    own_directory: str = ""
    """Directory of this workload alone."""
    checkpoint_dir: str = ""
    """Directory that is looked into after a stop, for files since the start; "": none."""
    code: Sequence[str] | None = None
    """Files of its command to note the digests of, with the commit; None: nothing is noted."""
    path: str = ""
    """PATH of the worker, on which the Python of its command is looked up."""
    expected: Sequence[str] = ()
    """Files of its command that were there before: its output says if one is gone."""
    most_files: int = 0
    """Maximum of files in its own directory; 0: no limit. A worker with more is killed."""
    open_files: int = 0
    """Soft limit of open descriptors; 0: the service's."""
    pam_service: str = ""
    """Service of PAM by whose session the account has its limits; "": the service's limits."""
    tmp_dir: str = ""
    """Folder that the supervisor locks while it lives; "": none."""
    group: str = ""
    """File by which a process joins the worker's control group; "": it has none."""


class Attempt:
    """Directory of one start of one worker."""

    def __init__(self, path: Path) -> None:
        """Set the path, which need not exist."""
        self.path = path

    # -- written by the service ------------------------------------------------------------------

    def launch(self, instructions: Instructions, environment: Mapping[str, str]) -> tuple[int, int]:
        """Start a supervisor; return PID and a descriptor that reaches EOF when it is up.

        Repeatable after a crash: of two supervisors in one directory the second does nothing.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write("environment.json", json.dumps(dict(environment)))
        self._write("spec.json", json.dumps(asdict(instructions)))
        status, status_write = os.pipe()
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(self.path), str(STATUS_FD)],
                python_variables(os.environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (
                        os.POSIX_SPAWN_OPEN,
                        2,
                        str(self.path / "supervisor.log"),
                        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                        0o600,
                    ),
                    (os.POSIX_SPAWN_DUP2, status_write, STATUS_FD),
                ],
                setsid=True,
            )
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(status_write)
        return pid, status

    def forget_environment(self) -> None:
        """Remove an environment that no process will read: it may hold secrets."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "environment.json").unlink()

    # -- written by the supervisor ---------------------------------------------------------------

    def holder(self) -> int | None:
        """Return the PID of the supervisor or its subreaper, if one of them lives."""
        return self._holder_of(0, count=0)  # any byte

    def kill_processes(self) -> None:
        """Kill all processes of the worker, then continue its supervisors, if they were stopped.

        They find that the worker has ended, and report it.
        """
        pids = [pid for byte in (0, 1) if (pid := self._holder_of(byte, count=1)) is not None]
        for root in pids[:1]:
            process_tree.end_all(root)
        process_tree.kill_all(pids, signal.SIGCONT)

    def _holder_of(self, byte: int, count: int) -> int | None:
        """Return the PID that locks one of `count` bytes; a count of 0 is all from `byte` on.

        Byte 0 is the supervisor's, byte 1 its subreaper's.
        """
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            request = struct.pack(_FLOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, byte, count, 0)
            lock = struct.unpack(_FLOCK_FORMAT, fcntl.fcntl(fd, fcntl.F_GETLK, request))
        finally:
            os.close(fd)
        return None if lock[0] == fcntl.F_UNLCK else lock[4]

    def begun(self) -> bool:
        """Return True if a supervisor ever started here; if it lives, it can be signalled."""
        return (self.path / "supervisor.json").exists()

    def process(self) -> Process | None:
        """Return the worker's process, if it was started."""
        with contextlib.suppress(_DamagedNote):
            if (note := self._read("process.json", pid=int, created=float | int)) is not None:
                return Process(note["pid"], note["created"])
        return None

    def final_exit(self) -> ExitStatus | None:
        """Return the worker's exit, if none of its processes is left."""
        return self._read_exit("exit.json")

    def program_exit(self) -> ExitStatus | None:
        """Return the exit of the worker's program; its children may still run."""
        return self._read_exit("ended.json")

    def has_new_checkpoint(self) -> bool | None:
        """Return whether a stopped worker's checkpoint directory has a file since its start.

        None: that is not known, or not yet.
        """
        with contextlib.suppress(_DamagedNote):
            note = self._read("saved.json", supervisor=int, new=bool)
            begun = self._read("supervisor.json", pid=int) if note is not None else None
            if note is not None and begun is not None and note["supervisor"] == begun["pid"]:
                return bool(note["new"])
        return None

    def code(self) -> Code | None:
        """Return the code with which it started; None: that is not known, or not yet."""
        with contextlib.suppress(_DamagedNote, ValidationError):
            if (content := self._read("code.json", files=dict, commit=str)) is not None:
                note = StartNote.model_validate(content)
                return Code(note.files, note.commit, note.python)
        return None

    def _read_exit(self, name: str) -> ExitStatus | None:
        """Return the exit in a note; None without a note, or if it is damaged."""
        try:
            note = self._read(name, exit_code=int | None, told=bool, text=str)
        except _DamagedNote as damaged:
            LOG.warning("%s cannot be read (%s): it counts as missing", self.path / name, damaged)
            return None
        if note is None:
            return None
        stopped = bool(note["told"])
        # Processes are also killed over a limit, or as leftovers.
        killed = stopped and note.get("killed") is True
        left = str(note.get("left", ""))  # missing if an older supervisor wrote it
        away = note.get("is_home_away") is True
        code, text = note["exit_code"], note["text"]
        return ExitStatus(
            code, stop_requested=stopped, killed=killed, left=left, text=text, is_home_away=away
        )

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically, readable by the service's account only."""
        path = self.path / name
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.rename(path)

    def _read(self, name: str, **fields: type | UnionType) -> dict[str, Any] | None:
        """Return a note with fields of these types; None if there is none.

        Supervisors write notes whole, but a repaired disk, a restored folder or a user's program
        may leave anything.

        Raises:
            _DamagedNote: it is something else.
            OSError: it cannot be read for now.
        """
        try:
            note: dict[str, Any] = json.loads((self.path / name).read_bytes())
            mistyped = [
                field for field, kind in fields.items() if not isinstance(note[field], kind)
            ]
        except FileNotFoundError:
            return None
        except OSError as failed:
            if failed.errno in NOT_NOW:
                raise
            raise _DamagedNote(failed.strerror) from failed
        except (KeyError, RecursionError, TypeError, ValueError) as failed:
            raise _DamagedNote(f"{type(failed).__name__}: {failed}") from failed
        if mistyped:
            raise _DamagedNote(f"wrong type: {', '.join(mistyped)}")
        return note


class _DamagedNote(Exception):
    """Error: a file of an attempt is no note."""
