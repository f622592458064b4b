"""What a session's notebook server has left is ended, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from runai.hub_service.processes import session_end
from runai.hub_service.processes.session_end import SESSION_ID, SessionProcesses, end_session
from unix_accounts import UIDS
from waiting import eventually

ID, OTHER = uuid4().hex, uuid4().hex
"""Of this process: other tests beside it must not find its processes."""
PYTHON = f"{sys.executable} -I -S -c"
DEAF = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'told\\n'))\n"
    "os.write(1, b'up\\n')\n"
    "while True: time.sleep(60)\n"
)
"""It says that it was told to end, and goes on."""
FORKS = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.write(1, b'up\\n')\n"
    "for _ in range(9000):\n"
    "    if os.fork(): os._exit(0)\n"
    "    time.sleep(0.02)\n"
)
"""It lives on in a new process after each 20 ms, for three minutes if nothing ends it."""


def _session(identity: str = ID, since: float = 0.0, **fields: object) -> SessionProcesses:
    return SessionProcesses(identity, since, os.geteuid(), **fields)  # type: ignore[arg-type]


def _marked_processes(identity: str) -> list[psutil.Process]:
    return list(_session(identity).find())


def _sleeping(identity: str) -> psutil.Process:
    """Return the program `sleep`, once the shells before it have become it."""

    def sleeping_processes() -> list[psutil.Process]:
        processes = _marked_processes(identity)
        return processes if [process.name() for process in processes] == ["sleep"] else []

    return eventually(sleeping_processes)[0]


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 1.0)
    yield
    for process in psutil.process_iter():
        try:
            if process.environ().get(SESSION_ID) in {ID, OTHER}:
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def leave(tmp_path: Path) -> Callable[..., Path]:
    """Run a shell that starts something and ends, as a notebook server; return its output."""

    def run(script: str, identity: str = ID, *program: str, **variables: str) -> Path:
        output = tmp_path / f"output-{time.monotonic_ns()}"
        with output.open("wb") as file:
            subprocess.run(
                [*program, "sh", "-c", script],
                env={**os.environ, SESSION_ID: identity, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                check=True,
            )
        return output

    return run


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 600 &", id="in its process group"),
        pytest.param("setsid nohup sleep 600 &", id="in a session of its own"),
        pytest.param("(setsid sh -c 'sleep 600 & sleep 601' &)", id="a tree"),
        pytest.param("cd /tmp && env HOME=/ setsid sleep 600 &", id="changed variables"),
        pytest.param(f'setsid {PYTHON} "{DEAF}" &', id="one that does not end by SIGTERM"),
        pytest.param(f'setsid {PYTHON} "{FORKS}" &', id="one that forks all the time"),
        pytest.param("setsid sh -c 'kill -STOP $$' &", id="a stopped one"),
    ],
)
async def test_leftover_processes_of_a_notebook_server_are_ended(leave, script):
    leave(script)
    eventually(lambda: _marked_processes(ID))

    leftovers = await end_session(_session())

    assert list(leftovers) == []
    assert _marked_processes(ID) == []


async def test_leftover_process_of_a_session_gets_sigterm_once_before_it_is_killed(leave):
    output = leave(f'setsid {PYTHON} "{DEAF}" &')
    eventually(lambda: output.read_text() == "up\n")

    await end_session(_session())

    assert output.read_text() == "up\ntold\n"


async def test_next_session_of_the_same_notebook_server_survives_the_end_of_the_former(leave):
    """It was stopped and started within a second: name, account and folder are the same."""
    leave("setsid sleep 600 &")
    leave("setsid sleep 601 &", OTHER)
    eventually(lambda: _marked_processes(ID) and _marked_processes(OTHER))

    await end_session(_session())

    assert (len(_marked_processes(ID)), len(_marked_processes(OTHER))) == (0, 1)


@pytest.mark.parametrize("above", ["a job's supervisor", "another session"])
async def test_process_of_a_different_workload_with_a_copied_session_id_is_not_killed(
    leave, tmp_path, above
):
    inner = f"env {SESSION_ID}={ID} sleep 600"
    if above == "another session":
        leave(f"setsid sh -c '{inner}; true' &", OTHER)
    else:
        program = tmp_path / "local/supervisor/subreaper.py"
        program.parent.mkdir(parents=True)
        program.write_text(f"import os\nos.system('{inner}; true')\n")
        leave(f"env -u {SESSION_ID} setsid {sys.executable} {program} &")
    copied = eventually(lambda: [*filter(_is_copy, psutil.process_iter())])

    leftovers = await end_session(_session())

    assert list(leftovers) == []
    assert all(process.is_running() for process in copied)


def _is_copy(process: psutil.Process) -> bool:
    try:
        return process.name() == "sleep" and process.environ().get(SESSION_ID) == ID
    except psutil.Error:
        return False


async def test_process_older_than_the_ended_session_is_not_killed(leave):
    leave("setsid sleep 600 &")
    process = _sleeping(ID)

    leftovers = await end_session(_session(since=process.create_time() + 60))

    assert list(leftovers) == []
    assert process.is_running()


async def test_process_of_a_foreign_account_in_an_ended_session_is_returned_as_leftover(leave):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another account")
    account = str(UIDS["ana"])
    change = ["setpriv", "--clear-groups", "--reuid", account, "--regid", account]
    leave("cd / && setsid sleep 600 &", ID, *change)
    process = _sleeping(ID)

    [leftover] = await end_session(_session())

    assert (leftover.pid, leftover.name, leftover.account) == (process.pid, "sleep", account)
    assert process.is_running()
    assert session_end.still_there(leftover)
    process.kill()
    eventually(lambda: not session_end.still_there(leftover))


async def test_session_end_kills_processes_by_control_group_before_session_id(leave):
    leave("setsid sleep 600 &", OTHER)
    leave("setsid sleep 601 &")
    inside, outside = _sleeping(OTHER), _sleeping(ID)
    groups = {inside.pid: True, outside.pid: False}

    await end_session(_session(in_group=groups.get))

    eventually(lambda: not inside.is_running() or inside.status() == psutil.STATUS_ZOMBIE)
    assert outside.is_running()


def test_session_end_does_not_signal_a_process_with_a_reused_pid(leave):
    leave("setsid sleep 600 &")
    process = _sleeping(ID)
    # As of the one that had it before.
    vars(process)["_create_time"] = process.create_time() - 5

    _session().send(process, signal.SIGKILL)

    assert psutil.pid_exists(process.pid)


def test_session_end_does_not_signal_a_process_without_the_session_id(leave):
    """Between search and signal it may have changed its environment by exec."""
    leave("setsid sleep 600 &")
    process = _sleeping(ID)

    _session(OTHER).send(process, signal.SIGKILL)

    assert psutil.pid_exists(process.pid)
