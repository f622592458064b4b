"""Jobs and sessions of Unix accounts: their groups, and walls between the users."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest

from labs import local_lab, plan, start
from runai.spawner.local import RunaiLocalSpawner
from unix_accounts import UIDS, accounts, as_user
from waiting import eventually_async

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run jobs as users")

LAB_GROUP = 54_400
PRINT_GROUPS_PROGRAM = "import os; print(os.getuid(), os.getgid(), sorted(os.getgroups()))"
SECRET = "a-password-of-ana"


@pytest.fixture
def unix():
    with accounts() as unix:
        unix.answer("ana", unix.entry("ana", groups=[UIDS["ana"], LAB_GROUP]))
        yield unix


@pytest.fixture
async def lab(unix, tmp_path):
    async with local_lab(tmp_path, accounts=unix.directory(tmp_path / "data")) as lab:
        yield lab


async def begin_job(lab, *command, device=0, **fields):
    [record] = await lab.cluster.submit([lab.job("exp", command=command, **fields)])
    assert await lab.cluster.apply(plan(start(record.id, device))) == []
    return record.id


async def read_output(lab, workload):
    chunks = lab.cluster.logs(workload, worker=None, tail=None, follow=False)
    return b"".join([chunk.lines async for chunk in chunks]).decode().strip()


async def running_pid(lab, workload):
    return (await lab.until(workload, "running")).workers[0].process.pid


async def test_job_has_the_groups_of_its_account_and_none_of_the_platforms(lab):
    workload = await begin_job(lab, "python3", "-c", PRINT_GROUPS_PROGRAM)
    await lab.until(workload, "succeeded")

    ana = UIDS["ana"]
    assert await read_output(lab, workload) == f"{ana} {ana} {[ana, LAB_GROUP]}"


def test_session_has_the_groups_of_its_account(unix, tmp_path):
    spawner = RunaiLocalSpawner(user=SimpleNamespace(name="ana"), system_users=True)
    spawner._start_account = asyncio.run(unix.directory(tmp_path).account("ana"))
    change_account = spawner.make_preexec_fn("ana")
    read, write = os.pipe()

    pid = os.fork()
    if not pid:
        try:
            change_account()
            os.write(write, f"{os.getuid()} {os.getgid()} {sorted(os.getgroups())}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)

    ana = UIDS["ana"]
    assert os.read(read, 200).decode() == f"{ana} {ana} {[ana, LAB_GROUP]}"
    os.close(read)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("cat {home}/notes", id="read a file"),
        pytest.param("ls {home}", id="list the home"),
        pytest.param("cat /proc/{pid}/environ", id="read the environment"),
        pytest.param("ls /proc/{pid}/fd", id="list open files"),
        pytest.param("kill {pid}", id="send a signal"),
        pytest.param("ls {log}", id="list the output"),
    ],
)
async def test_job_processes_and_files_are_inaccessible_to_other_users(lab, unix, script):
    home = unix.folder / "ana"
    (home / "notes").write_text("of ana")
    os.chown(home / "notes", UIDS["ana"], UIDS["ana"])
    workload = await begin_job(lab, "sleep", "1000", env={"DB_PASSWORD": SECRET})
    pid = await running_pid(lab, workload)
    log = (await lab.cluster.workload(workload)).log_dir

    result = as_user("pat", script.format(home=home, pid=pid, log=log))

    assert result.returncode != 0
    assert SECRET not in result.stdout + result.stderr
    if "{log}" not in script:  # the output folder belongs to the service alone
        assert as_user("ana", script.format(home=home, pid=pid)).returncode == 0


async def test_job_goes_on_under_its_account_over_a_restart_of_the_service(unix, tmp_path):
    directory = unix.directory(tmp_path / "data")
    done = unix.folder / "ana/done"
    script = f"trap 'id -u > {done}; exit 143' TERM; echo up; while :; do sleep 0.05; done"
    async with local_lab(tmp_path, accounts=directory, forget=False) as lab:
        workload = await begin_job(lab, "sh", "-c", script)
        pid = await running_pid(lab, workload)

        async def is_up():
            return await read_output(lab, workload) == "up"

        await eventually_async(is_up)

    async with local_lab(tmp_path, accounts=directory) as lab:
        assert await running_pid(lab, workload) == pid
        await lab.cluster.suspend(workload, by="ana")
        await lab.until(workload, "suspended")

    assert done.read_text() == f"{UIDS['ana']}\n"
    assert done.stat().st_uid == UIDS["ana"]
