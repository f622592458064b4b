"""The check of a stopped worker's checkpoint directory, by real supervisors."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from runai.hub_service.clusters.local.supervisor import checkpoint_check, worker_start
from runai.hub_service.model.progress import PROGRESS_FILE
from starts import Start, has_exited, let_hang

FOLDER_NAME = "checkpoints"


@pytest.fixture
def checkpoint_dir(tmp_path: Path) -> Path:
    """Return a checkpoint directory with an old file."""
    folder = tmp_path / FOLDER_NAME
    folder.mkdir()
    (folder / "old").touch()
    return folder


def stop_worker(start: Start, checkpoint_dir: Path, on_term: str, eventually, **fields) -> Start:
    """Start a worker that runs `on_term` at SIGTERM, stop it, and wait for its end."""
    program = f"trap '{on_term}' TERM; echo ready; while :; do sleep 0.05; done"
    environment = {"CHECKPOINTS": str(checkpoint_dir)}
    start(
        "sh", "-c", program, environment=environment, checkpoint_dir=str(checkpoint_dir), **fields
    )
    eventually(lambda: start.printed("ready"))
    start.stop()
    assert start.final_exit().stop_requested
    return start


# -- a stopped worker ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_term", "is_new"),
    [
        ('touch "$CHECKPOINTS/new"; exit 143', True),
        ('mkdir -p "$CHECKPOINTS/a/b"; touch "$CHECKPOINTS/a/b/new"; exit 143', True),
        ('echo more >> "$CHECKPOINTS/old"; exit 0', True),
        ('touch "$CHECKPOINTS/new"; kill -9 $$', True),
        ("exit 143", False),
        ("exit 0", False),
        ("exit 1", False),
        ("kill -9 $$", False),
        ('mkdir "$CHECKPOINTS/empty"; rm "$CHECKPOINTS/old"; exit 143', False),
        (f'echo {{}} > "$CHECKPOINTS/{PROGRESS_FILE}"; exit 143', False),
    ],
    ids=[
        "new file",
        "new file in a new folder",
        "longer old file",
        "new file, then killed",
        "no file, exit code 143",
        "no file, exit code 0",
        "no file, exit code 1",
        "no file, killed",
        "removed file only",
        "progress report only",
    ],
)
def test_checkpoint_check_after_a_worker_stop_reports_whether_a_file_is_new(
    start, checkpoint_dir, eventually, on_term, is_new
):
    stop_worker(start, checkpoint_dir, on_term, eventually)

    eventually(lambda: start.attempt.has_new_checkpoint() is not None)
    assert start.attempt.has_new_checkpoint() is is_new


def test_worker_that_ends_without_a_stop_gets_no_checkpoint_check(start, checkpoint_dir):
    start("sh", "-c", "exit 3", checkpoint_dir=str(checkpoint_dir)).final_exit()

    assert start.attempt.has_new_checkpoint() is None
    assert not (start.path / "saved.json").exists()


def test_checkpoint_answer_of_an_earlier_job_of_the_name_is_ignored(
    start, checkpoint_dir, eventually
):
    stop_worker(start, checkpoint_dir, "exit 143", eventually)
    eventually(lambda: start.attempt.has_new_checkpoint() is False)

    (start.path / "supervisor.json").write_text('{"pid": 1, "created": 0}')

    assert start.attempt.has_new_checkpoint() is None


@pytest.mark.parametrize("within_s", [1000, 0.1], ids=["long time limit", "time limit that passes"])
def test_hanging_checkpoint_check_delays_neither_exit_nor_lock_release(
    start, checkpoint_dir, eventually, tmp_path, monkeypatch, within_s
):
    names = "checkpoint_check.has_new_file", "checkpoint_check.CHECK_WITHIN_S"
    pid = let_hang(monkeypatch, tmp_path, *names, within_s)

    stop_worker(start, checkpoint_dir, "exit 143", eventually)

    assert start.attempt.holder() is None
    eventually(pid.exists)
    checker = int(pid.read_text())
    if within_s > 1:
        assert not has_exited(checker)
        psutil.Process(psutil.Process(checker).ppid()).kill()
    eventually(lambda: has_exited(checker))
    assert start.attempt.has_new_checkpoint() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another account")
@pytest.mark.parametrize(
    ("is_closed", "is_new"), [(True, None), (False, False)], ids=["closed", "open"]
)
def test_checkpoint_check_has_only_the_rights_of_the_account(start, eventually, is_closed, is_new):
    account, folder = pwd.getpwnam("nobody"), Path(tempfile.mkdtemp())
    identity = {"uid": account.pw_uid, "gid": account.pw_gid, "user": account.pw_name}
    try:
        os.chown(folder, account.pw_uid, account.pw_gid)
        (folder / "inner").mkdir(mode=0o700 if is_closed else 0o755)  # owned by root
        stop_worker(start, folder, "exit 143", eventually, **identity)
        eventually(lambda: not checks_of(start))

        assert start.attempt.has_new_checkpoint() is is_new
    finally:
        shutil.rmtree(folder)


def checks_of(start: Start) -> list[int]:
    """Return the processes of the check: forks of the supervisor, with its command line."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(start.path) in (process.info["cmdline"] or ()) and not has_exited(process.pid)
    ]


# -- the comparison ------------------------------------------------------------------------------


def time_after_files(checkpoint_dir: Path) -> int:
    """Return a time of the directory's file system after that of its files."""
    known = max(path.lstat().st_ctime_ns for path in checkpoint_dir.iterdir())
    while (now := worker_start.touch(str(checkpoint_dir))) <= known:
        pass  # its clock has ticks of milliseconds
    return now


def test_checkpoint_check_follows_no_link(tmp_path, checkpoint_dir):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (checkpoint_dir / "link").symlink_to(elsewhere)
    since = time_after_files(checkpoint_dir)
    (elsewhere / "new").touch()

    assert not checkpoint_check.has_new_file(str(checkpoint_dir), since)
    assert checkpoint_check.has_new_file(str(elsewhere), since)
    with pytest.raises(OSError, match="link"):
        checkpoint_check.has_new_file(str(checkpoint_dir / "link"), since)


def test_checkpoint_file_copied_with_an_old_mtime_is_a_new_checkpoint(tmp_path, checkpoint_dir):
    (tmp_path / "model").touch()
    os.utime(tmp_path / "model", ns=(1, 1))
    since = time_after_files(checkpoint_dir)
    shutil.copy2(tmp_path / "model", checkpoint_dir / "model")

    assert checkpoint_check.has_new_file(str(checkpoint_dir), since)


def test_checkpoint_check_fails_if_the_file_system_clock_was_set_back(checkpoint_dir):
    with pytest.raises(OSError, match="set back"):
        checkpoint_check.has_new_file(
            str(checkpoint_dir), time_after_files(checkpoint_dir) + 10**18
        )


def test_supervisor_and_service_agree_on_the_progress_file_name():
    assert checkpoint_check.PROGRESS_FILE == PROGRESS_FILE
