"""Files that a job's start makes are its user's alone, whatever the umask and the user's home."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from labs import LocalLab, local_lab, plan, start
from runai.hub_service.model.records import WorkloadId
from unix_accounts import UIDS, Accounts, accounts, as_user

SOURCE = "umask; echo result > result; echo result > $RUNAI_CHECKPOINT_DIR/result"


@pytest.fixture
def permissive_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(params=[False, True], ids=["one account", "system users"])
def unix(request: pytest.FixtureRequest) -> Iterator[Accounts | None]:
    """Accounts with homes that all may read; None where the platform makes the homes."""
    if not request.param:
        yield None
        return
    if os.geteuid() != 0:
        pytest.skip("needs root, to run jobs as users")
    with accounts() as unix:
        for user in UIDS:
            (unix.folder / user).chmod(0o755)
        yield unix


@pytest.mark.usefixtures("permissive_umask")
async def test_program_text_and_names_of_jobs_are_readable_by_their_user_only(
    unix: Accounts | None, tmp_path: Path
):
    homes = None if unix is None else unix.folder
    directory = None if unix is None else unix.directory(tmp_path / "data")
    async with local_lab(tmp_path, accounts=directory) as lab:
        folders = tmp_path / "data/jobs" if homes is None else homes / "ana/.local/share/runai"
        job_dir = (
            folders / "vision" / ("secret" if homes is None else f"secret-{int(lab.clock.at)}")
        )
        uid = os.geteuid() if homes is None else UIDS["ana"]
        # The job finds folders and files of its user that all accounts may read.
        for folder in [*reversed(job_dir.parents), job_dir]:
            if not folder.exists():
                folder.mkdir()
                os.chown(folder, uid, uid)
        (job_dir / "source.py").touch()
        os.chown(job_dir / "source.py", uid, uid)

        spec = lab.job("secret", command=("/bin/sh", "{source}"), source=SOURCE)
        await lab.cluster.submit([spec])
        await lab.cluster.apply(plan(start(spec.id, 0)))
        record = await lab.until(spec.id, "succeeded")

        assert job_dir == Path(record.checkpoint_dir).parent
        home = tmp_path / "data/users/ana" if homes is None else homes / "ana"
        private_paths = [
            folders,
            folders / "vision",
            job_dir,
            job_dir / "checkpoints",
            tmp_path / "data/jobs",
        ]
        assert {path: _mode(path) for path in private_paths if _mode(path) != 0o700} == {}
        assert _mode(job_dir / "source.py") == 0o600
        # The program's own umask is the usual one.
        assert [chunk async for chunk in _output(lab, spec.id)] == ["0022\n"]
        assert {_mode(home / "result"), _mode(job_dir / "checkpoints/result")} == {0o644}
        if homes is not None:
            assert as_user("ana", f"cat {job_dir}/source.py").stdout == SOURCE
            for attempt in (f"ls {folders}/vision", f"cat {job_dir}/source.py"):
                assert "Permission denied" in as_user("pat", attempt).stderr, attempt


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def _output(lab: LocalLab, workload: WorkloadId) -> AsyncIterator[str]:
    async for chunk in lab.cluster.logs(workload, worker=None, tail=None, follow=False):
        yield chunk.lines.decode()
