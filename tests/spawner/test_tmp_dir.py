"""Servers have a TMPDIR of their own, also without a GPU; it ends with them."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from hub_platform import HubPlatform
from runai.hub_service.processes.tmp_dirs import is_in_tmp_dir
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(900)]


def tmp_dir_of(platform: HubPlatform, user: str) -> Path:
    return Path(platform.environment(user)["TMPDIR"])


@pytest.mark.parametrize(
    "options", [{"project": "vision", "gpus": 0.5}, {}], ids=["with a GPU", "without a GPU"]
)
def test_notebook_server_has_a_private_locked_tmpdir_that_its_stop_removes(
    platform: HubPlatform, options: dict[str, object]
):
    platform.start_server("ana", **options)
    tmp_dir = tmp_dir_of(platform, "ana")
    environment = platform.environment("ana")

    assert is_in_tmp_dir(str(tmp_dir))
    assert stat.S_IMODE(tmp_dir.stat().st_mode) == 0o700
    assert environment["TORCHINDUCTOR_CACHE_DIR"].startswith(environment["HOME"])
    cleaner = ["flock", "--nonblock", "--exclusive", str(tmp_dir), "true"]
    assert subprocess.run(cleaner, check=False).returncode != 0
    (tmp_dir / "noted").touch()

    platform.stop_server("ana")

    eventually(lambda: not tmp_dir.exists(), what="the folder is removed")


def test_tmpdir_of_a_killed_hubs_server_is_removed_when_the_server_ends(platform: HubPlatform):
    platform.start_server("ana", project="vision", gpus=0.5)
    for user in ("bo", "cy"):
        platform.start_server(user, gpus="0")
    tmp_dirs = {user: tmp_dir_of(platform, user) for user in ("ana", "bo", "cy")}
    for folder in tmp_dirs.values():
        (folder / "noted").touch()
    platform.kill()
    killed = psutil.Process(platform.pid("cy"))
    killed.kill()
    psutil.wait_procs([killed], timeout=60)
    platform.start()

    eventually(
        lambda: not tmp_dirs["cy"].exists(), what="the folder of the ended server is removed"
    )
    assert [(tmp_dirs[user] / "noted").exists() for user in ("ana", "bo")] == [True, True]
    platform.stop_all()
    eventually(lambda: not any(folder.exists() for folder in tmp_dirs.values()))
