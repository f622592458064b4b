"""Removal of a user's files runs as that user, with access to all it was started with.

A separate process stands for the service: ours may have library threads, which are unsafe across
a fork, and a change of account takes a fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crashes.small_disk import SmallDisk
from runai.hub_service.clusters.local.files.job_dir_cleanup import DeletedWorkload, JobDirCleanup
from unix_accounts import open_folder
from waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to remove files as users")

EVE_UID = 54_323
SECRET = "of-the-service"
SLEEP_SCRIPT = "#!/bin/sh\nexec sleep 1000\n"
REMOVAL_PROGRAM = f"""
import asyncio, sys
from pathlib import Path
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.clusters.local.files.job_dir_cleanup import DeletedWorkload, HomeJobDir
from runai.hub_service.clusters.local.files.job_dir_cleanup import JobDirCleanup
jobs, home, aged = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "aged"
cleanup = JobDirCleanup(jobs)
home_dir = HomeJobDir(home / "exp-1", UnixAccount("eve", home, {EVE_UID}, {EVE_UID}))
with cleanup.removal(DeletedWorkload("vision/exp", 1.0, aged), home_dir):
    pass
asyncio.run(cleanup.run())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Make a folder that every account may pass through."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def slow_removal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make removals last as long as the test."""
    for name in ("rm", "find"):
        (home / name).write_text(SLEEP_SCRIPT)
        (home / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")


@pytest.mark.usefixtures("slow_removal")
@pytest.mark.parametrize("reason", ["deleted", "aged"])
def test_job_file_removal_process_exposes_no_secret_to_the_owner_of_the_files(
    reason, home, tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNAI_HUB_TOKEN", SECRET)
    command = [sys.executable, "-c", REMOVAL_PROGRAM, tmp_path / "jobs", home, reason]
    with subprocess.Popen(command) as service:
        try:
            eventually(lambda: waiting_removals(service.pid) != [])
            (removal,) = waiting_removals(service.pid)
            environ = as_eve(f"cat /proc/{removal.pid}/environ")
            standard_streams = {as_eve(f"readlink /proc/{removal.pid}/fd/{n}") for n in range(3)}

            variables = {line.partition("=")[0] for line in environ.split("\0") if line}
            assert variables - {"PWD", "SHLVL", "_"} == {"PATH"}  # the shell sets the rest
            assert SECRET not in environ
            assert standard_streams == {"/dev/null\n"}
            assert os.getsid(removal.pid) == removal.pid
        finally:
            for removal in waiting_removals(service.pid):
                removal.kill()
            service.kill()


def waiting_removals(service: int) -> list[psutil.Process]:
    """Return Eve's processes, once they run the program that waits."""
    return [
        process
        for process in psutil.Process(service).children()
        if process.uids().real == EVE_UID and process.name() == "sleep"
    ]


def as_eve(script: str) -> str:
    account = str(EVE_UID)
    setpriv = ["setpriv", "--clear-groups", "--reuid", account, "--regid", account]
    result = subprocess.run(
        [*setpriv, "sh", "-c", script], cwd="/", capture_output=True, text=True, check=True
    )
    return result.stdout


@pytest.mark.mounts
def test_directory_of_a_deleted_job_is_moved_aside_on_a_full_disk(tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    disk = SmallDisk(jobs, mib=1)
    try:
        cleanup = JobDirCleanup(jobs)
        (jobs / "vision/train").mkdir(parents=True)
        disk.fill()

        with cleanup.removal(DeletedWorkload("vision/train", 1.0, aged=False), None):
            assert not (jobs / "vision/train").exists()

        assert len(list((jobs / ".trash").iterdir())) == 1
    finally:
        disk.unmount()
