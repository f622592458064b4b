"""Jobs have a TMPDIR of their own: short, closed, empty at the start, gone with the last worker."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from labs import LocalLab, local_lab, plan, resize, start
from runai.hub_service.cli.doctor.platform_checks import check_tmp_dirs
from runai.hub_service.clusters.local.supervisor.supervisor import lock_tmp_dir
from runai.hub_service.processes.folder_lock import locked
from runai.hub_service.processes.tmp_dirs import (
    DEFAULT_BASE,
    MAX_PATH_BYTES,
    TmpDirs,
    is_in_tmp_dir,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from unix_accounts import UIDS, accounts, as_user
from waiting import eventually, eventually_async

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another account")

RAY_SOCKET_PATH = "/ray/session_2026-11-29_13-33-59_123456_1234567/sockets/plasma_store"
"""Path of the longest socket of Ray, below TMPDIR."""
MAX_SOCKET_PATH_BYTES = 107  # the kernel's limit for a Unix socket

RAY_LIKE_PROGRAM = """
import os, socket, sys, tempfile
noted = os.path.join(tempfile.gettempdir(), "ray/ray_current_cluster")
if os.path.exists(noted):
    print("joins", open(noted).read())
else:
    os.makedirs(os.path.dirname(noted))
    open(noted, "w").write(os.environ["RUNAI_WORKLOAD"])
    place = tempfile.gettempdir() + "/ray/session_2026-11-29_13-33-59_123456_1234567/sockets"
    os.makedirs(place)
    socket.socket(socket.AF_UNIX).bind(place + "/plasma_store")
    print("begins", os.environ["RUNAI_WORKLOAD"])
print(tempfile.gettempdir(), flush=True)
{then}
"""
"""A program that does with TMPDIR what Ray does."""
WAIT = "import signal; signal.pause()"


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder with a path as short as an admin may choose."""
    folder = Path("/tmp") / f"t{os.getpid()}"
    folder.mkdir(mode=0o700)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[TmpDirs]:
    yield TmpDirs(tmp_path, environ={})
    for link in tmp_path.glob("tmp-*"):
        subprocess.run(["rm", "-rf", str(link.readlink())], check=True)


def ray_like_command(then: str = "") -> tuple[str, ...]:
    return (sys.executable, "-I", "-c", RAY_LIKE_PROGRAM.format(then=then))


def try_exclusive_lock(folder: str) -> subprocess.CompletedProcess[bytes]:
    """Lock a folder as systemd-tmpfiles does before it removes files; it fails if it is locked."""
    return subprocess.run(["flock", "--nonblock", "--exclusive", folder, "true"], check=False)


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


async def output(lab: LocalLab, name: str) -> list[str]:
    chunks = lab.cluster.logs(name, worker=None, tail=None, follow=False)
    return b"".join([chunk.lines async for chunk in chunks]).decode().splitlines()


async def printed_tmp_dir(lab: LocalLab, name: str, lines: int = 2) -> Path:
    """Return the TMPDIR that a job has printed, when it has."""

    async def has_printed() -> bool:
        return len(await output(lab, name)) >= lines

    await eventually_async(has_printed)
    return Path((await output(lab, name))[-1])


async def tmp_dir(lab: LocalLab, workload: str, worker: int = 0) -> Path:
    """Return the TMPDIR in a worker's environment."""
    return Path((await lab.cluster.environment(workload, worker)).variables["TMPDIR"])


async def wait_until_removed(*folders: Path) -> None:
    def are_removed() -> bool:
        return not any(folder.exists() for folder in folders)

    await eventually_async(are_removed, what="the folder is removed")


class TestPath:
    """The path of a folder."""

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("vision/exp 0196", id="short name"),
            pytest.param(f"{'p' * 63}/{'n' * 63} {'0' * 36}", id="longest names"),
            pytest.param("ü/é ☃", id="other script"),
        ],
    )
    def test_tmp_dir_path_leaves_room_for_a_ray_socket(self, dirs, name):
        path = dirs.make(name)

        # 72 bytes are left below a folder and its slash; Ray needs 68.
        assert MAX_SOCKET_PATH_BYTES - len("/") - 72 == MAX_PATH_BYTES
        assert len(os.fsencode(path)) <= MAX_PATH_BYTES
        assert len(os.fsencode(f"{path}{RAY_SOCKET_PATH}")) <= MAX_SOCKET_PATH_BYTES
        assert is_in_tmp_dir(str(path))
        dirs.remove(name)

    def test_tmp_dir_is_below_the_platforms_own_short_tmpdir(self, base, tmp_path):
        dirs = TmpDirs(tmp_path, environ={"TMPDIR": str(base)})

        assert dirs.make("a").parent.parent == base

    @pytest.mark.parametrize(
        "tmpdir",
        [
            pytest.param("{long}", id="too long"),
            pytest.param("{short}/none", id="missing"),
            pytest.param("tmp", id="relative"),
            pytest.param("", id="empty"),
        ],
    )
    def test_tmp_dir_is_in_tmp_if_the_platforms_own_cannot_be_used(self, tmpdir, base, tmp_path):
        tmpdir = tmpdir.format(long=tmp_path, short=base)
        dirs = TmpDirs(tmp_path, environ={"TMPDIR": tmpdir})

        assert dirs.make("a").parent.parent == DEFAULT_BASE
        dirs.remove("a")

    @pytest.mark.parametrize(
        ("mode", "for_all"),
        [
            pytest.param(0o777, False, id="writable by all accounts"),
            pytest.param(0o700, True, id="closed to the users"),
        ],
    )
    def test_tmp_dir_is_in_tmp_if_the_platforms_own_is_unsafe(self, mode, for_all, base, tmp_path):
        base.chmod(mode)
        dirs = TmpDirs(tmp_path, for_all=for_all, environ={"TMPDIR": str(base)})

        assert dirs.make("a").parent.parent == DEFAULT_BASE
        dirs.remove("a")

    def test_tmp_dir_follows_a_changed_tmpdir_once_the_old_one_is_unused(
        self, base, dirs, tmp_path
    ):
        before = dirs.make("a")
        changed = TmpDirs(tmp_path, environ={"TMPDIR": str(base)})

        assert changed.make("b").parent == before.parent
        for name in ("a", "b"):
            changed.remove(name)
        assert changed.make("c").parent.parent == base

    @pytest.mark.parametrize(
        ("path", "is_ours"),
        [
            ("/tmp/runai-abcdef/abcdefgh", True),
            ("/scratch/t/runai-abc234/abcdefgh/below", True),
            ("/tmp/runai-abcdef", False),
            ("/tmp", False),
            ("runai-abcdef/abcdefgh", False),
            ("", False),
        ],
    )
    def test_tmp_dir_is_recognised_by_the_form_of_its_path(self, path, is_ours):
        assert is_in_tmp_dir(path) is is_ours


class TestFolder:
    """A folder, without a job."""

    def test_new_tmp_dir_is_empty_and_closed_to_other_accounts(self, dirs):
        path = dirs.make("a")

        status = path.lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.geteuid())
        assert list(path.iterdir()) == []
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o711
        dirs.remove("a")

    def test_tmp_dir_of_a_joining_worker_has_the_files_of_the_first(self, dirs):
        (dirs.make("a") / "file").touch()

        assert (dirs.make("a") / "file").exists()

    def test_leftover_tmp_dir_is_empty_for_the_next_start(self, dirs, tmp_path):
        (dirs.make("a") / "file").touch()

        assert list(TmpDirs(tmp_path, environ={}).make("a").iterdir()) == []

    def test_link_in_place_of_the_tmp_dirs_parent_is_not_used(self, dirs, tmp_path):
        parent = dirs.make("a").parent
        dirs.remove("a")
        assert not parent.exists()
        parent.symlink_to(tmp_path)

        assert dirs.make("b").parent != parent
        dirs.remove("b")
        parent.unlink()

    def test_tmp_dir_is_removed_whatever_its_modes(self, dirs):
        path = dirs.make("a")
        (path / "closed/below").mkdir(parents=True)
        (path / "closed").chmod(0)
        path.chmod(0)

        dirs.remove("a")

        eventually(lambda: not path.parent.exists())

    def test_tmp_dir_is_removed_without_following_its_links(self, dirs, tmp_path):
        spared = tmp_path / "spared"
        spared.mkdir()
        (spared / "file").touch()
        path = dirs.make("a")
        (path / "link").symlink_to(spared)

        dirs.remove("a")

        eventually(lambda: not path.parent.exists())
        assert (spared / "file").exists()

    @pytest.mark.mounts
    def test_tmp_dir_is_removed_without_entering_a_mounted_file_system(self, tmp_path):
        dirs = TmpDirs(tmp_path, environ={})
        path = dirs.make("a", UIDS["ana"], UIDS["ana"])
        assert as_user("ana", f"mkdir {path}/mounted && touch {path}/own").returncode == 0
        subprocess.run(["mount", "-t", "tmpfs", "x", f"{path}/mounted"], check=True)
        (path / "mounted/roots").touch()

        dirs.remove("a")

        [leftover] = dirs.left()
        try:
            eventually(lambda: [entry.name for entry in leftover.iterdir()] == ["mounted"])
            assert (leftover / "mounted/roots").exists()
            [finding] = check_tmp_dirs(tmp_path)
            assert finding.verdict == "note"
            assert str(leftover) in finding.text
        finally:
            subprocess.run(["umount", f"{leftover}/mounted"], check=True)
        TmpDirs(tmp_path, environ={}).sweep(())
        eventually(lambda: not path.parent.exists())

    @as_root
    def test_tmp_dir_is_inaccessible_to_other_accounts(self, tmp_path):
        dirs = TmpDirs(tmp_path, environ={})
        path = dirs.make("a", UIDS["ana"], UIDS["ana"])

        assert as_user("ana", f"touch {path}/own").returncode == 0
        for script in (f"touch {path}/x", f"ls {path}", f"ls {path.parent}", f"rm -r {path}"):
            assert as_user("pat", script).returncode != 0
        assert as_user("ana", f"rm -rf {path}; mkdir {path.parent}/x").returncode != 0
        assert path.is_dir()
        dirs.remove("a")
        eventually(lambda: not path.parent.exists())


class TestSweep:
    """The removal of what a killed platform has left, at the next start."""

    @pytest.mark.parametrize(
        "use",
        [
            pytest.param("lock", id="locked by a supervisor or a server"),
            pytest.param("process", id="in the environment of a process"),
            pytest.param("row", id="folder of an active job"),
        ],
    )
    def test_tmp_dir_sweep_spares_a_directory_in_use(self, use, dirs, tmp_path):
        path, unused_path = dirs.make("a"), dirs.make("b")
        command = [
            sys.executable,
            "-I",
            "-c",
            "print('up', flush=True); import time; time.sleep(99)",
        ]
        with subprocess.Popen(
            command,
            env={"TMPDIR": str(path if use == "process" else tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            lock = locked(path) if use == "lock" else lock_tmp_dir("")
            try:
                TmpDirs(tmp_path, environ={}).sweep(["a"] if use == "row" else [])
                assert path.exists()
                assert not unused_path.exists()
            finally:
                process.kill()
                if lock >= 0:
                    os.close(lock)

    def test_tmp_dir_sweep_of_a_copied_data_directory_spares_tmp_dirs_of_the_original(
        self, dirs, tmp_path
    ):
        elsewhere = tmp_path / "copy"
        elsewhere.mkdir()
        path = dirs.make("a")
        subprocess.run(["cp", "-a", *tmp_path.glob("tmp-*"), str(elsewhere)], check=True)

        TmpDirs(elsewhere, environ={}).sweep(())

        assert path.exists()

    def test_tmp_dir_sweep_finishes_an_interrupted_removal(self, dirs, tmp_path):
        path = dirs.make("a")
        leftover = path.parent / ".trash/abc"
        leftover.mkdir(parents=True)
        (leftover / "file").touch()
        [finding] = check_tmp_dirs(tmp_path)
        assert str(leftover) in finding.text

        TmpDirs(tmp_path, environ={}).sweep(["a"])

        eventually(lambda: not leftover.parent.exists())
        assert path.exists()
        dirs.remove("a")
        assert list(check_tmp_dirs(tmp_path)) == []


class TestJobs:
    """The folders of jobs."""

    async def test_ray_job_joins_no_ray_cluster_of_a_different_or_earlier_start(self, lab):
        first = lab.job("h", command=ray_like_command(WAIT), gpus=0.5)
        second = lab.job("i", command=ray_like_command(WAIT), project="nlp", user="bo", gpus=0.5)
        await lab.started(first, second, share=0.5)
        folders = [await printed_tmp_dir(lab, first.id), await printed_tmp_dir(lab, second.id)]
        begun = [(await output(lab, spec.id))[0] for spec in (first, second)]
        assert begun == ["begins vision/h", "begins nlp/i"]

        for spec in (first, second):
            await lab.cluster.suspend(spec.id, by="ana")
            await lab.until(spec.id, "suspended")
        await wait_until_removed(*folders)
        await lab.cluster.resume(first.id, by="ana")
        assert await lab.cluster.apply(plan(start(first.id, 0, share=0.5))) == []

        # The second start prints the lines 3 and 4.
        assert await printed_tmp_dir(lab, first.id, lines=4) == folders[0]
        assert (await output(lab, first.id))[2] == "begins vision/h"

    async def test_ray_cluster_of_a_killed_start_is_not_joined_by_the_next_start(self, lab):
        spec = lab.job(command=ray_like_command("os.kill(os.getpid(), 9)"), backoff_limit=1)
        await lab.cluster.submit([spec])
        assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
        await printed_tmp_dir(lab, spec.id)
        await lab.until(spec.id, "retrying")
        await lab.pass_time(3600)
        assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
        await lab.until(spec.id, "failed")

        # Each start prints two lines: `begins` or `joins`, and its folder.
        assert (await output(lab, spec.id))[::2] == ["begins vision/exp"] * 2

    async def test_gang_shares_a_tmp_dir_until_its_last_worker_has_ended(self, lab):
        spec = lab.job(workers=2)
        await lab.started(spec)
        folder = await tmp_dir(lab, spec.id)
        assert await tmp_dir(lab, spec.id, 1) == folder
        (folder / "file").touch()

        await lab.end(spec, 0)
        await eventually_async(lambda: _has_ended(lab, spec.id, 0))
        assert (folder / "file").exists()
        await lab.end(spec, 0, worker=1)
        await lab.until(spec.id, "succeeded")

        await wait_until_removed(folder)

    async def test_resized_worker_retains_the_files_of_its_tmp_dir(self, lab):
        spec = lab.job(on_term=143, elastic=True, gpus_max=MilliGpu(4000))
        await lab.started(spec)
        folder = await tmp_dir(lab, spec.id)
        (folder / "file").touch()

        assert await lab.cluster.apply(plan(resize(spec.id, 0, 1))) == []
        await lab.until(spec.id, "stopping")
        await lab.until(spec.id, "running")

        assert names_in(folder) == ["file"]

    async def test_tmp_dir_is_removed_after_service_and_supervisors_were_killed(self, tmp_path):
        async with local_lab(tmp_path, forget=False) as lab:
            spec = lab.job()
            await lab.started(spec)
            folder = await tmp_dir(lab, spec.id)
            (folder / "file").touch()
            [worker] = (await lab.cluster.workload(spec.id)).workers
            assert worker.process is not None
            supervisors = psutil.Process(worker.process.pid).parents()[:2]
        assert names_in(folder) == ["file"]
        for process in reversed(supervisors):
            process.kill()
        await asyncio.to_thread(psutil.wait_procs, supervisors)
        async with local_lab(tmp_path) as lab:
            await lab.until(spec.id, "retrying")

            await wait_until_removed(folder)

    async def test_restarted_service_spares_the_tmp_dir_of_a_running_job(self, tmp_path):
        async with local_lab(tmp_path, forget=False) as lab:
            spec = lab.job()
            await lab.started(spec)
            folder = await tmp_dir(lab, spec.id)
            (folder / "file").touch()
        async with local_lab(tmp_path) as lab:
            assert (folder / "file").exists()
            await lab.until(spec.id, "running")
            await lab.end(spec, 0)
            await lab.until(spec.id, "succeeded")

            await wait_until_removed(folder)

    async def test_tmp_dir_is_locked_while_its_supervisor_lives(self, lab):
        spec = lab.job()
        await lab.started(spec)
        folder = await tmp_dir(lab, spec.id)

        assert try_exclusive_lock(str(folder)).returncode != 0
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")

    @pytest.mark.parametrize(
        ("requested", "is_retained"),
        [
            pytest.param("/var/tmp", True, id="requested with the job"),
            pytest.param("", True, id="requested with the job, empty"),
            pytest.param("/tmp/runai-abcdef/abcdefgh", False, id="TMPDIR of the notebook"),
        ],
    )
    async def test_tmp_dir_overrides_a_notebooks_tmpdir_but_not_an_explicit_one(
        self, requested, is_retained, lab
    ):
        spec = lab.job(env={"TMPDIR": requested})
        await lab.started(spec)

        actual = (await lab.cluster.environment(spec.id)).variables["TMPDIR"]
        assert (actual == requested) is is_retained
        assert is_in_tmp_dir(actual) is not is_retained

    @as_root
    async def test_tmp_dir_of_a_system_users_job_belongs_to_its_account(self, base):
        base.chmod(0o755)
        with accounts() as unix:
            folder = unix.folder
            async with local_lab(folder, accounts=unix.directory(folder / "data")) as lab:
                script = 'ls -ldn "$TMPDIR" && touch "$TMPDIR/x" && echo $TMPDIR'
                spec = lab.job(command=("sh", "-c", script))
                await lab.cluster.submit([spec])
                assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
                await lab.until(spec.id, "succeeded")
                listing, printed_path = await output(lab, spec.id)

                assert listing.split()[0].rstrip(".+") == "drwx------"
                assert listing.split()[2:4] == [str(UIDS["ana"])] * 2
                await wait_until_removed(Path(printed_path))

    async def test_session_tmp_dir_exists_from_its_grant_to_the_end_of_its_server(self, lab):
        spec = lab.session()
        await lab.started(spec, share=0.5)
        folder = await tmp_dir(lab, spec.id)
        assert names_in(folder) == []
        (folder / "file").touch()
        await lab.cluster.attach(spec.id, await lab.session_process())
        assert await tmp_dir(lab, spec.id) == folder
        assert (folder / "file").exists()

        await lab.end_session(spec)
        await wait_until_removed(folder)

    async def test_tmp_dir_of_a_session_without_a_server_is_removed_with_it(self, lab):
        spec = lab.session()
        await lab.started(spec, share=0.5)
        folder = await tmp_dir(lab, spec.id)

        await lab.cluster.delete(spec.id, by="ana")
        await lab.until_deleted(spec.id)

        await wait_until_removed(folder)

    async def test_compiler_caches_of_jobs_are_in_the_home(self, lab):
        script = "echo $TORCHINDUCTOR_CACHE_DIR"
        specs = [
            lab.job("own", command=("sh", "-c", script)),
            lab.job("set", command=("sh", "-c", script), env={"TORCHINDUCTOR_CACHE_DIR": "/mine"}),
        ]
        await lab.cluster.submit(specs)
        for device, spec in enumerate(specs):
            await lab.cluster.apply(plan(start(spec.id, device)))
            await lab.until(spec.id, "succeeded")

        [own], [chosen] = [await output(lab, spec.id) for spec in specs]
        assert own.endswith("/users/ana/.cache/torchinductor")
        assert chosen == "/mine"


async def _has_ended(lab: LocalLab, name: str, worker: int) -> bool:
    return (await lab.cluster.workload(name)).workers[worker].state == "finished"
