"""One start of one worker, as files: what its supervisor is told, and what it tells.

The directory is the token of the start: whatever crashed when, it says whether the worker was
started, runs, or has ended. Knows the files' names and formats, together with `supervisor` and its
`witness`. Called by `cluster`.

    spec.json         what to run (we)             supervisor.json  the supervisor began (it)
    environment.json  0600, gone once read (we)    process.json     the worker's program runs (it)
    lock              held by those two (they)     ended.json       how that ended (one of them)
    log-000001.txt …  output (it)                  exit.json        nothing of it is left (it)
    supervisor.log    their own troubles
"""

import contextlib
import fcntl
import json
import os
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runai.hub_service.clusters.local.supervisor import process_tree
from runai.hub_service.clusters.local.supervisor.worker_start import ROOM_S
from runai.hub_service.clusters.states.state import Ending
from runai.hub_service.model.records import Process

SUPERVISOR = Path(__file__).parents[1] / "supervisor/subreaper.py"
STATUS_FD = 3

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a supervisor is told, apart from the environment."""

    command: Sequence[str]
    workdir: str
    grace_seconds: float
    uid: int | None = None
    """None: run as we do; else change to this account (with `gid` and the groups of `user`)."""
    gid: int = 0
    user: str = ""
    umask: int = 0o022
    directories: Sequence[str] = ()
    """Made by the worker's account before it starts."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written by the worker's account before it starts: path and text."""
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 10
    room_seconds: float = ROOM_S
    """How long its directories and files may have to wait for room on their disk."""
    most_processes: int = 4096
    """Of the worker and all that it starts, at once: more is a fork bomb, and all are ended."""
    most_tasks: int = 32_768
    """Processes and threads, likewise: what a machine has of both together is bounded.

    A training has as many threads in each process as there are processors, for each library of its
    own: with eight loaders and three such on 128 processors 3,500, with eight GPUs 28,000. Of a
    smaller machine, or control group, one job may have half.
    """
    own_directory: str = ""
    """The one that its workload is given; nobody else writes there."""
    most_files: int = 0
    """In its own directory: a worker that has more is ended; 0: as many as the disk takes."""
    open_files: int = 0
    """Of how many descriptors it may have at once, until it asks for more; 0: as we."""


class Attempt:
    """The directory of one start of one worker."""

    def __init__(self, path: Path) -> None:
        """Name the directory; it need not exist."""
        self.path = path

    # -- what we tell ----------------------------------------------------------------------------

    def launch(self, instructions: Instructions, environment: Mapping[str, str]) -> tuple[int, int]:
        """Start a supervisor; return its PID and a descriptor that reads its end when it is up.

        May be repeated after a crash: of two supervisors in one directory one does nothing.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write("environment.json", json.dumps(dict(environment)))
        self._write("spec.json", json.dumps(asdict(instructions)))
        status, status_write = os.pipe()
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(self.path), str(STATUS_FD)],
                {k: v for k in ("LD_LIBRARY_PATH",) if (v := os.environ.get(k))},
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
        """Remove an environment that nobody will read: it may hold secrets."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "environment.json").unlink()

    # -- what it tells ---------------------------------------------------------------------------

    def holder(self) -> int | None:
        """Return the PID of the supervisor or its witness, if one of them lives."""
        return self._holder_of(0, 0)  # of any byte

    def end_what_runs(self) -> None:
        """Kill all that the worker has running, then wake who keeps it, if somebody stopped them.

        They find that it has ended, and tell how.
        """
        keepers = [pid for byte in (0, 1) if (pid := self._holder_of(byte, 1)) is not None]
        for supervisor_or_witness in keepers[:1]:
            process_tree.end_all(supervisor_or_witness)
        process_tree.kill_all(keepers, signal.SIGCONT)

    def _holder_of(self, byte: int, many: int) -> int | None:
        """Return who holds these bytes of the lock: first the supervisor's, then its witness's."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, many, 0)
            found = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            os.close(fd)
        return None if found[0] == fcntl.F_UNLCK else found[4]

    def begun(self) -> bool:
        """Tell whether a supervisor has ever begun here, and can be signalled if it lives."""
        return (self.path / "supervisor.json").exists()

    def process(self) -> Process | None:
        """Return the worker's process, if it was started."""
        told = self._read("process.json")
        return None if told is None else Process(told["pid"], told["created"])

    def ending(self) -> Ending | None:
        """Return how the worker ended, if it has and nothing of it is left."""
        return self._ending("exit.json")

    def left_behind(self) -> Ending | None:
        """Return how the worker's program ended, if it has; what it started may still run."""
        return self._ending("ended.json")

    def _ending(self, name: str) -> Ending | None:
        told = self._read(name)
        if told is None:
            return None
        return Ending(told["exit_code"], told=told["told"], text=told["text"])

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.rename(path)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        return told
