"""One start of one worker by a real supervisor, with the handles that tests need."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from runai.hub_service.clusters.local.processes import attempt
from runai.hub_service.clusters.local.processes.attempt import Attempt, Instructions
from runai.hub_service.clusters.local.supervisor import subreaper
from runai.hub_service.clusters.states.transition import ExitStatus


class Start:
    """One attempt; `one_start` kills its remaining processes at the end."""

    def __init__(self, path: Path) -> None:
        self.attempt = Attempt(path)
        self.path = path
        self.pid = 0
        self.search_path = f"{os.environ['PATH']}:{path}"
        """The PATH of the start; its last folder marks every process that inherits it."""

    def __call__(
        self, *command: str, environment: dict[str, str] | None = None, **overrides: Any
    ) -> Start:
        """Start a command and return when it runs, or could not start."""
        instructions: dict[str, Any] = {"workdir": "/tmp", "grace_seconds": 30} | overrides
        environment = {"PATH": self.search_path, **(environment or {})}
        self.pid, status = self.attempt.launch(Instructions(command, **instructions), environment)
        os.read(status, 1)
        os.close(status)
        return self

    def python(self, program: str, **overrides: Any) -> Start:
        """Start a Python program, and wait until it has printed "ready"."""
        self(sys.executable, "-I", "-S", "-u", "-c", program, **overrides)
        return self

    @property
    def supervisor(self) -> psutil.Process:
        """Return the supervisor itself; `pid` is its parent, the witness."""
        supervisor_info = json.loads((self.path / "supervisor.json").read_text())
        return psutil.Process(supervisor_info["pid"])

    @property
    def worker(self) -> psutil.Process:
        """Return the worker's process."""
        process = self.attempt.process()
        assert process is not None
        return psutil.Process(process.pid)

    def stop(self) -> None:
        """Request the worker's stop from its supervisor."""
        os.kill(self.pid, signal.SIGTERM)

    def final_exit(self) -> ExitStatus:
        """Wait for the supervisor's end, and return the exit status it recorded."""
        os.waitpid(self.pid, 0)
        final_exit = self.attempt.final_exit()
        assert final_exit is not None
        return final_exit

    def exit_file(self) -> dict[str, Any]:
        """Return the content of exit.json."""
        content: dict[str, Any] = json.loads((self.path / "exit.json").read_text())
        return content

    def output(self) -> str:
        """Return the worker's output."""
        return "".join(path.read_text() for path in sorted(self.path.glob("log-*.txt")))

    def printed(self, word: str) -> bool:
        """Return True if the worker has printed `word`."""
        return word in self.output()


HANGING_SUPERVISOR = """
import os, sys, time
sys.path[:0] = {folders!r}
import checkpoint_check, code_note, program_files, subreaper

def hang(*_):
    with open({pid!r} + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename({pid!r} + ".new", {pid!r})
    time.sleep(1000)

{reading}, {limit} = hang, {within}
subreaper.main(sys.argv[1], int(sys.argv[2]))
"""


def let_hang(
    monkeypatch: pytest.MonkeyPatch, folder: Path, reading: str, limit: str, within: float
) -> Path:
    """Let a reading beside a worker hang, with another time limit in seconds.

    Return the file in which its PID will be.
    """
    here = Path(subreaper.__file__).parent
    folders, pid = [str(here), str(here.parents[2] / "processes")], folder / "hanging.pid"
    values = {"folders": folders, "pid": str(pid), "within": within}
    program = folder / "hangs.py"
    program.write_text(HANGING_SUPERVISOR.format(reading=reading, limit=limit, **values))
    monkeypatch.setattr(attempt, "SUPERVISOR", program)
    return pid


def has_exited(pid: int) -> bool:
    """Return True if a process has ended, or waits for its parent."""
    try:
        return has_ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def has_ended(process: psutil.Process) -> bool:
    """Return True if a process has ended; it stays a zombie until its parent reaps it."""
    return process.status() == psutil.STATUS_ZOMBIE


@contextmanager
def one_start(path: Path) -> Generator[Start]:
    """Yield one start in a directory; kill its remaining processes at the end."""
    started = Start(path)
    yield started
    if started.attempt.begun():
        with suppress(psutil.NoSuchProcess):
            started.supervisor.kill()
    if started.pid and psutil.pid_exists(started.pid):
        os.kill(started.pid, signal.SIGKILL)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PATH") == started.search_path:
                process.kill()
