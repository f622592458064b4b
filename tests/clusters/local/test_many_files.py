"""A job that writes millions of small files is ended with a sentence; its files are removed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clusters.local.hostile_jobs import hostile_processes, lab_with_neighbour, read_log, start_job
from runai.hub_service.clusters.local.supervisor import file_count
from runai.hub_service.server.settings import MOST_JOB_FILES
from waiting import eventually_async

MILLION = 1_000_000
MIB = 2**20
MANY_SMALL_FILES = """
import os, sys, time
file_count = int(sys.argv[1])
for n in range(file_count):
    if n % 1000 == 0:
        folder = os.path.join(os.environ["RUNAI_CHECKPOINT_DIR"], str(n))
        os.mkdir(folder)
    os.close(os.open(os.path.join(folder, str(n)), os.O_CREAT | os.O_WRONLY))
time.sleep(600)
"""


@pytest.mark.timeout(1800)  # a million files take minutes on a slow disk
@pytest.mark.parametrize(
    ("max_files", "written_files"),
    [
        pytest.param(5_000, 20_000, id="a small limit"),
        pytest.param(MOST_JOB_FILES, MILLION, id="a million", marks=pytest.mark.slow),
    ],
)
async def test_job_with_too_many_files_is_ended_with_a_reason(
    tmp_path, monkeypatch, max_files, written_files
):
    async with lab_with_neighbour(tmp_path, monkeypatch, job_files=max_files) as (lab, neighbour):
        rss_before, count_before = psutil.Process().memory_info().rss, neighbour.progress()
        command = (sys.executable, "-I", "-S", "-c", MANY_SMALL_FILES, str(written_files))
        await start_job(lab, lab.job("hostile", command=command, grace_seconds=1))

        async def has_failed() -> bool:
            return (await lab.cluster.workload("vision/hostile")).state == "failed"

        await eventually_async(has_failed, within=900)
        record = await lab.cluster.workload("vision/hostile")
        assert record.reason is not None
        assert record.reason.code == "contained"
        assert record.reason.text == (
            f"it had more than {max_files:,} files in its own directory "
            "(that of RUNAI_CHECKPOINT_DIR), so it was ended"
        )
        assert await read_log(lab) == f"runai: {record.reason.text}\n"
        assert hostile_processes(lab) == []
        assert max_files < file_count.count_files(record.checkpoint_dir, MILLION) < MILLION
        assert neighbour.progress() > count_before

        await lab.cluster.delete("vision/hostile", by="ana")
        trash = tmp_path / "data/jobs/.trash"
        await eventually_async(lambda: not any(trash.iterdir()), within=900)
        assert psutil.Process().memory_info().rss - rss_before < 50 * MIB


# -- counting ------------------------------------------------------------------------------------


def test_file_count_includes_all_folders_and_follows_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one").touch()
    own_dir = tmp_path / "own"
    (own_dir / "a" / "b").mkdir(parents=True)
    (own_dir / "a" / "one").touch()
    (own_dir / "a" / "b" / "two").touch()
    (own_dir / "to-elsewhere").symlink_to(tmp_path / "elsewhere")
    (own_dir / "a" / "round").symlink_to(own_dir)

    entries = 6  # two folders, two files and two links
    assert file_count.count_files(str(own_dir), 100) == entries
    # The count ends one above the limit.
    assert file_count.count_files(str(own_dir), 5) == 6
    assert file_count.count_files(str(own_dir), 4) == 5
    assert file_count.count_files(str(tmp_path / "gone"), 100) == 0


def test_job_file_count_without_a_file_limit_never_scans_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(file_count, "LOOK_EVERY_S", 0)
    count = file_count.FileCount({"own_directory": str(tmp_path), "most_files": 0})
    monkeypatch.setattr(count, "_start_count", lambda: pytest.fail("it counts"))

    assert not count.poll()


POLLING_PROGRAM = """
import os, pathlib, sys
own, beside, program = map(pathlib.Path, sys.argv[1:])
sys.path.append(str(program.parent))
import subreaper, file_count  # subreaper completes the path
file_count.LOOK_EVERY_S = file_count.REST = 0
count = file_count.FileCount({"uid": None, "own_directory": str(own), "most_files": 100})

def make(folder, number):
    first = len(os.listdir(folder))
    for n in range(first, first + number):
        (folder / str(n)).touch()

def poll():
    while not count.poll():
        pass

def report():
    print("exceeded" if count.is_exceeded else "within", flush=True)

make(own, 50)
poll()
report()
make(beside, 500)     # the disk has got more files, none in the own directory
poll()
report()
make(own, 50)
poll()
report()
make(own, 1)
file_count.FULL_COUNT_EVERY_S = 0.01     # other programs may have removed one from the disk
while not count.is_exceeded:
    poll()
report()
"""


def test_file_count_ignores_files_outside_its_own_directory(tmp_path):
    own_dir, beside = tmp_path / "own", tmp_path / "beside"
    own_dir.mkdir()
    beside.mkdir()
    # The program makes 50, 100 and 101 files in its own directory; its limit is 100.
    # In a separate process: the check forks, and ours may have threads.
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        POLLING_PROGRAM,
        own_dir,
        beside,
        file_count.__file__,
    ]
    result = subprocess.run(command, check=True, capture_output=True, text=True)

    assert result.stdout.split("\n") == ["within", "within", "within", "exceeded", ""]


@pytest.fixture
def account_and_folder() -> Iterator[tuple[pwd.struct_passwd, Path]]:
    """Return an account and a folder it can enter: pytest's own folders are root's alone."""
    account, folder = pwd.getpwnam("nobody"), Path(tempfile.mkdtemp())
    os.chown(folder, account.pw_uid, account.pw_gid)
    yield account, folder
    shutil.rmtree(folder)


COUNTING_PROGRAM = """
import pathlib, sys
own, uid, gid, user, program = sys.argv[1:]
sys.path.append(str(pathlib.Path(program).parent))
import subreaper, file_count  # subreaper completes the path
file_count.LOOK_EVERY_S = 0
identity = {"uid": int(uid), "gid": int(gid), "groups": [], "user": user}
count = file_count.FileCount({**identity, "own_directory": own, "most_files": 2})
while not count.poll():
    pass
print("exceeded" if count.is_exceeded else "within", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another account")
@pytest.mark.parametrize(("is_closed", "expected"), [(True, "within\n"), (False, "exceeded\n")])
def test_file_count_runs_with_the_rights_of_the_directorys_owner(
    account_and_folder, is_closed, expected
):
    account, folder = account_and_folder
    inner = folder / "inner"
    inner.mkdir(mode=0o700 if is_closed else 0o755)  # owned by root
    for n in range(10):  # the limit is two
        (inner / str(n)).touch()
    (folder / "one").touch()
    identity = str(account.pw_uid), str(account.pw_gid), account.pw_name
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        COUNTING_PROGRAM,
        folder,
        *identity,
        file_count.__file__,
    ]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)

    assert answer.stdout == expected
