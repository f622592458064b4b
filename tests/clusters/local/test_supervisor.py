"""The supervisor: a program that runs one worker, and communicates through files."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from runai.hub_service.clusters.states.transition import ExitStatus

# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
    ids=["success", "failure", "killed", "terminated"],
)
def test_supervisor_notes_the_exit_code_of_its_worker(start, script, exit_code):
    assert ExitStatus(exit_code) == start("sh", "-c", script).final_exit()


@pytest.mark.parametrize(
    ("command", "fields", "text"),
    [
        (["no-such-program"], {}, "cannot start no-such-program: No such file or directory"),
        (["true"], {"workdir": "/no/dir"}, "cannot start in /no/dir: /no is not there"),
        (["true"], {"directories": ["/proc/x"]}, "cannot start: /proc/x is not there"),
    ],
    ids=["unknown program", "missing workdir", "directory that cannot be made"],
)
def test_supervisor_notes_and_logs_why_its_worker_could_not_start(start, command, fields, text):
    assert ExitStatus(127, text=text) == start(*command, **fields).final_exit()
    assert f"{text}\n" == start.output()
    assert not (start.path / "process.json").exists()


def test_second_supervisor_start_of_the_same_job_attempt_runs_no_program(start):
    program = "echo once; read -r _ < /dev/null; exec sleep 1000"
    first_pid = start("sh", "-c", program).pid

    pid_beside_the_first = start("sh", "-c", program).pid
    os.waitpid(pid_beside_the_first, 0)
    assert start.attempt.holder() == first_pid

    os.kill(first_pid, signal.SIGTERM)
    os.waitpid(first_pid, 0)
    pid_after_the_first = start("sh", "-c", program).pid
    os.waitpid(pid_after_the_first, 0)
    assert start.output() == "once\n"


def test_processes_that_a_worker_leaves_behind_end_with_it(start, eventually):
    daemon = "setsid sh -c 'sleep 1000 <&- >&- 2>&- & echo $!'"
    start("sh", "-c", f"sleep 1000 & echo $!; echo $({daemon}); exit 0")

    assert start.final_exit().exit_code == 0

    pids = [int(pid) for pid in start.output().split()[:2]]
    assert len(pids) == 2
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


# -- stopping ------------------------------------------------------------------------------------


def test_worker_that_obeys_sigterm_ends_with_its_own_exit_code(start, eventually):
    program = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.1; done"
    start("sh", "-c", program)
    eventually(lambda: start.printed("ready"))

    start.stop()

    assert ExitStatus(143, stop_requested=True) == start.final_exit()
    assert start.output().endswith("saved\n")


STUBBORN = r"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"%d\n" % os.getpid())  # in one piece: three processes write
for daemon in (False, True):
    if os.fork() == 0:
        if daemon:
            os.setsid()
            if os.fork():
                os._exit(0)
        os.write(1, b"%d\n" % os.getpid())
        while True:
            time.sleep(100)
os.write(1, b"ready\n")
while True:
    time.sleep(100)
"""


def test_worker_that_ignores_sigterm_is_killed_with_its_descendants(start, eventually):
    start.python(STUBBORN, grace_seconds=0.2)
    eventually(lambda: len(start.output().split()) == 4)  # three PIDs, and "ready"

    start.stop()

    assert ExitStatus(-9, stop_requested=True, killed=True) == start.final_exit()
    assert start.exit_file()["killed"]
    pids = [int(word) for word in start.output().split() if word.isdigit()]
    assert len(pids) == 3
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_program_under_a_shell_gets_the_grace_period_of_a_worker_stop(start, eventually):
    # SIGTERM reaches the whole group: the shell dies of it, the program under it needs longer.
    inner = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    start("sh", "-c", f'sh -c "{inner}"; true')
    eventually(lambda: start.printed("ready"))

    start.stop()

    assert start.final_exit().stop_requested
    assert not start.exit_file()["killed"]
    assert start.output().endswith("saved\n")


# -- environment ---------------------------------------------------------------------------------


def test_worker_environment_has_no_variables_of_the_service(start):
    start("env", environment={"TOKEN": "secret-1"}).final_exit()

    assert {"PATH", "TOKEN"} == {line.split("=")[0] for line in start.output().splitlines()}


def test_worker_secrets_are_in_no_file_and_no_argument_of_the_supervisor(start, eventually):
    start.python("import time; print('ready'); time.sleep(1000)", environment={"TOKEN": "secret-1"})

    assert not (start.path / "environment.json").exists()
    files = [path for path in start.path.iterdir() if path.is_file()]
    assert not [path for path in files if b"secret-1" in path.read_bytes()]
    assert "secret-1" not in " ".join(psutil.Process(start.pid).cmdline())
    assert "TOKEN" not in psutil.Process(start.pid).environ()


def test_supervisor_files_are_readable_by_their_owner_only(start):
    start("true").final_exit()

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in start.path.iterdir()}
    assert stat.S_IMODE(start.path.stat().st_mode) == 0o700
    assert dict.fromkeys(modes, 0o600) == modes


def test_worker_leads_its_own_session_without_a_terminal(start):
    start.python(
        "import os, sys; print(os.getpid(), os.getsid(0), os.getpgid(0), sys.stdin.read())"
    )
    start.final_exit()

    pid, session, group = start.output().split()
    assert pid == session == group


def test_worker_starts_with_no_ignored_signals(start):
    start("grep", "SigIgn", "/proc/self/status").final_exit()

    assert int(start.output().split()[1], 16) & 0x7FFF_FFFF == 0  # higher: the C library's


def test_requested_files_and_directories_exist_before_the_worker_starts(start, tmp_path):
    source = tmp_path / "made" / "source.py"
    fields = {"directories": [str(source.parent)], "files": {str(source): "print('hello')"}}

    start(sys.executable, "-I", "-S", str(source), **fields).final_exit()

    assert start.output() == "hello\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another account")
def test_worker_process_runs_under_its_users_account(start, eventually):
    nobody = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp())  # other accounts cannot enter pytest's own directories
    try:
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        start(
            "sh",
            "-c",
            "id -u; id -g; id -G; pwd; umask; exec sleep 1000",
            workdir=str(home),
            uid=nobody.pw_uid,
            gid=nobody.pw_gid,
            user="nobody",
            directories=[str(home / "a" / "checkpoints")],
            files={str(home / "a" / "source.py"): ""},
        )
        eventually(lambda: len(start.output().splitlines()) == 5)

        uid, gid, groups, workdir, umask = start.output().splitlines()
        assert (str(nobody.pw_uid), str(nobody.pw_gid)) == (uid, gid)
        assert [str(nobody.pw_gid)] == groups.split()
        assert (str(home), "0022") == (workdir, umask)
        assert nobody.pw_uid == (home / "a" / "source.py").stat().st_uid

        worker = start.worker
        start.supervisor.kill()
        os.waitpid(start.pid, 0)
        assert not psutil.pid_exists(worker.pid)
    finally:
        shutil.rmtree(home)


# -- logs ----------------------------------------------------------------------------------------


def test_logs_are_split_between_lines_and_retain_first_and_newest_files(start):
    start("sh", "-c", "for i in $(seq 10 50); do echo line $i; done", log_bytes=50, log_files=3)
    start.final_exit()

    files = sorted(start.path.glob("log-*.txt"))
    # A file has six lines of eight bytes; its name states the lines and bytes before it.
    assert [path.name for path in files] == [
        "log-000001.txt",
        *(f"log-{n:06d}-{6 * n - 6}-{48 * n - 48}.txt" for n in (5, 6, 7)),
    ]
    assert all(path.stat().st_size <= 50 for path in files)
    lines = start.output().splitlines()
    assert lines == [f"line {i}" for i in (*range(10, 16), *range(34, 51))]


def test_log_line_longer_than_a_file_is_split(start):
    start("sh", "-c", "printf '%0120d\\n' 7", log_bytes=50, log_files=10)  # 120 digits
    start.final_exit()

    assert [p.stat().st_size for p in sorted(start.path.glob("log-*.txt"))] == [50, 50, 21]
    assert f"{'0' * 119}7\n" == start.output()


def test_last_worker_output_without_a_newline_is_logged(start):
    start("printf", "no newline").final_exit()

    assert start.output() == "no newline"
