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

ENDED_SESSION, OTHER_SESSION = uuid4().hex, uuid4().hex
"""Session IDs of this test process alone: tests beside it have other IDs."""
PYTHON = f"{sys.executable} -I -S -c"
DEAF_PROGRAM = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'SIGTERM\\n'))\n"
    "os.write(1, b'ready\\n')\n"
    "while True: time.sleep(60)\n"
)
"""A program that prints each SIGTERM, and goes on."""
FORKING_PROGRAM = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.write(1, b'ready\\n')\n"
    "for _ in range(9000):\n"
    "    if os.fork(): os._exit(0)\n"
    "    time.sleep(0.02)\n"
)
"""A program that goes on in a new process every 20 ms, for three minutes at most."""


def _session(
    identity: str = ENDED_SESSION, since: float = 0.0, **fields: object
) -> SessionProcesses:
    return SessionProcesses(identity, since, os.geteuid(), **fields)  # type: ignore[arg-type]


def _marked_processes(identity: str) -> list[psutil.Process]:
    return list(_session(identity).find())


def _sleep_process(identity: str) -> psutil.Process:
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
            if process.environ().get(SESSION_ID) in {ENDED_SESSION, OTHER_SESSION}:
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def run_server(tmp_path: Path) -> Callable[..., Path]:
    """Run a shell that starts something and ends, as a notebook server; return its output."""

    def run(script: str, identity: str = ENDED_SESSION, *program: str, **variables: str) -> Path:
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
        pytest.param("sleep 600 &", id="process group of the server"),
        pytest.param("setsid nohup sleep 600 &", id="own session"),
        pytest.param("(setsid sh -c 'sleep 600 & sleep 601' &)", id="process tree"),
        pytest.param("cd /tmp && env HOME=/ setsid sleep 600 &", id="changed environment"),
        pytest.param(f'setsid {PYTHON} "{DEAF_PROGRAM}" &', id="ignores SIGTERM"),
        pytest.param(f'setsid {PYTHON} "{FORKING_PROGRAM}" &', id="forks all the time"),
        pytest.param("setsid sh -c 'kill -STOP $$' &", id="stopped by SIGSTOP"),
    ],
)
async def test_leftover_processes_of_a_notebook_server_are_ended(run_server, script):
    run_server(script)
    eventually(lambda: _marked_processes(ENDED_SESSION))

    leftovers = await end_session(_session())

    assert list(leftovers) == []
    assert _marked_processes(ENDED_SESSION) == []


async def test_leftover_process_of_a_session_gets_sigterm_once_before_it_is_killed(run_server):
    output = run_server(f'setsid {PYTHON} "{DEAF_PROGRAM}" &')
    eventually(lambda: output.read_text() == "ready\n")

    await end_session(_session())

    assert output.read_text() == "ready\nSIGTERM\n"


async def test_next_session_of_the_same_notebook_server_survives_the_end_of_the_former(run_server):
    """Name, account and folder of both sessions are the same; only their IDs differ."""
    run_server("setsid sleep 600 &")
    run_server("setsid sleep 601 &", OTHER_SESSION)
    eventually(lambda: _marked_processes(ENDED_SESSION) and _marked_processes(OTHER_SESSION))

    await end_session(_session())

    assert _marked_processes(ENDED_SESSION) == []
    assert len(_marked_processes(OTHER_SESSION)) == 1


@pytest.mark.parametrize("parent", ["supervisor of a job", "other session"])
async def test_process_of_a_different_workload_with_a_copied_session_id_is_not_killed(
    run_server, tmp_path, parent
):
    inner = f"env {SESSION_ID}={ENDED_SESSION} sleep 600"
    if parent == "other session":
        run_server(f"setsid sh -c '{inner}; true' &", OTHER_SESSION)
    else:
        program = tmp_path / "local/supervisor/subreaper.py"
        program.parent.mkdir(parents=True)
        program.write_text(f"import os\nos.system('{inner}; true')\n")
        run_server(f"env -u {SESSION_ID} setsid {sys.executable} {program} &")
    copies = eventually(lambda: [*filter(_is_copy, psutil.process_iter())])

    leftovers = await end_session(_session())

    assert list(leftovers) == []
    assert all(process.is_running() for process in copies)


def _is_copy(process: psutil.Process) -> bool:
    try:
        return process.name() == "sleep" and process.environ().get(SESSION_ID) == ENDED_SESSION
    except psutil.Error:
        return False


async def test_process_older_than_the_ended_session_is_not_killed(run_server):
    run_server("setsid sleep 600 &")
    process = _sleep_process(ENDED_SESSION)

    leftovers = await end_session(_session(since=process.create_time() + 60))

    assert list(leftovers) == []
    assert process.is_running()


async def test_process_of_a_foreign_account_in_an_ended_session_is_returned_as_leftover(run_server):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another account")
    account = str(UIDS["ana"])
    change = ["setpriv", "--clear-groups", "--reuid", account, "--regid", account]
    run_server("cd / && setsid sleep 600 &", ENDED_SESSION, *change)
    process = _sleep_process(ENDED_SESSION)

    [leftover] = await end_session(_session())

    assert (leftover.pid, leftover.name, leftover.account) == (process.pid, "sleep", account)
    assert process.is_running()
    assert session_end.still_there(leftover)
    process.kill()
    eventually(lambda: not session_end.still_there(leftover))


async def test_session_end_kills_processes_by_control_group_before_session_id(run_server):
    run_server("setsid sleep 600 &", OTHER_SESSION)
    run_server("setsid sleep 601 &")
    inside, outside = _sleep_process(OTHER_SESSION), _sleep_process(ENDED_SESSION)
    is_in_group = {inside.pid: True, outside.pid: False}

    await end_session(_session(in_group=is_in_group.get))

    eventually(lambda: not inside.is_running() or inside.status() == psutil.STATUS_ZOMBIE)
    assert outside.is_running()


def test_session_end_does_not_signal_a_process_with_a_reused_pid(run_server):
    run_server("setsid sleep 600 &")
    process = _sleep_process(ENDED_SESSION)
    # As if an earlier process had had the PID when the search found it.
    vars(process)["_create_time"] = process.create_time() - 5

    _session().send(process, signal.SIGKILL)

    assert psutil.pid_exists(process.pid)


def test_session_end_does_not_signal_a_process_without_the_session_id(run_server):
    """A process may change its environment by exec between search and signal."""
    run_server("setsid sleep 600 &")
    process = _sleep_process(ENDED_SESSION)

    _session(OTHER_SESSION).send(process, signal.SIGKILL)

    assert psutil.pid_exists(process.pid)
