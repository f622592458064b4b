"""An account at its process limit: a start waits, because a process may become free.

The limits are the kernel's own, of an account that no other test uses.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from runai.hub_service.clusters.local.processes.attempt import Attempt, Instructions
from runai.hub_service.clusters.local.supervisor import worker_start
from runai.hub_service.clusters.states.transition import ExitStatus
from starts import one_start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone is given no limit")

EVE_UID = 54_325
MAX_PROCESSES = 5
FORKS = """
import os, pathlib, resource, sys
sys.path.append(str(pathlib.Path(sys.argv[2]).parent))
import subreaper, worker_start  # subreaper completes the path
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setuid(int(sys.argv[1]))
print(worker_start.start({"command": ["train"]}, {}, 1))
"""


THREADS_PROGRAM = """
import os, sys, threading
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def exceed_process_limit() -> Iterator[None]:
    """Run more threads of an account than its limit of processes, which supervisors inherit.

    In a separate program: a fork of ours may end before its exec if other tests left threads.
    """
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    command = [sys.executable, "-I", "-c", THREADS_PROGRAM, str(EVE_UID), str(MAX_PROCESSES + 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as threads:
        assert threads.stdout
        assert threads.stdout.readline() == b"ready\n"
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, before[1]))
        try:
            yield
            assert psutil.Process(threads.pid).num_threads() > MAX_PROCESSES
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, before)
            threads.kill()


def test_worker_start_at_the_process_limit_is_retried_until_a_process_is_available(
    tmp_path, eventually
):
    with one_start(tmp_path / "attempt") as start:
        with exceed_process_limit():
            start("true", uid=EVE_UID, gid=EVE_UID, user="eve")
            text = "cannot start true: Resource temporarily unavailable; it is tried again\n"
            eventually(lambda: start.output() == text)
            assert start.attempt.process() is None
            assert start.attempt.final_exit() is None

        assert ExitStatus(0) == start.final_exit()


def test_worker_start_at_the_process_limit_fails_after_its_waiting_time(tmp_path):
    text = "cannot start true: Resource temporarily unavailable"
    with one_start(tmp_path / "attempt") as start, exceed_process_limit():
        start("true", uid=EVE_UID, gid=EVE_UID, user="eve", room_seconds=1)

        assert ExitStatus(127, text=text) == start.final_exit()


def test_failed_fork_of_a_worker_start_returns_a_reason_instead_of_raising():
    # The forking process has the limit; a separate process, because its account changes.
    command = [sys.executable, "-I", "-S", "-c", FORKS, str(EVE_UID), worker_start.__file__]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    reason = "cannot start train: Resource temporarily unavailable"
    assert output == f"{worker_start.StartOutcome(0, reason, lacks_room=True)!r}\n"


SUPERVISOR_PROGRAM = """
import os, pathlib, resource, sys
sys.path.append(str(pathlib.Path(sys.argv[2]).parent))
import exit_notes, subreaper, supervisor  # subreaper completes the path
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setuid(int(sys.argv[1]))
supervisor.Supervisor(sys.argv[3], os.open("/dev/null", 1), exit_notes.ExitNotes(sys.argv[3])).run()
"""


def test_supervisor_that_cannot_fork_notes_the_reason_and_ends():
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other accounts
    attempt = Attempt(folder)
    instructions = Instructions(("train",), "/", 1.0, room_seconds=0)
    (folder / "spec.json").write_text(json.dumps(asdict(instructions)))
    (folder / "environment.json").write_text("{}")
    try:
        for path in (folder, *folder.iterdir()):
            os.chown(path, EVE_UID, EVE_UID)
        command = [sys.executable, "-I", "-S", "-c", SUPERVISOR_PROGRAM]
        subprocess.run([*command, str(EVE_UID), worker_start.__file__, str(folder)], check=True)

        text = "cannot start train: Resource temporarily unavailable"
        assert ExitStatus(127, text=text) == attempt.final_exit()
    finally:
        shutil.rmtree(folder)
