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


def place(platform: HubPlatform, user: str) -> Path:
    return Path(platform.environment(user)["TMPDIR"])


@pytest.mark.parametrize(
    "options", [{"project": "vision", "gpus": 0.5}, {}], ids=["with a GPU", "without one"]
)
def test_server_has_a_closed_folder_that_cleaners_spare_and_that_ends_with_it(
    fresh: HubPlatform, options: dict[str, object]
):
    fresh.start_server("ana", **options)
    own = place(fresh, "ana")
    environment = fresh.environment("ana")

    assert is_in_tmp_dir(str(own))
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert environment["TORCHINDUCTOR_CACHE_DIR"].startswith(environment["HOME"])
    cleaner = ["flock", "--nonblock", "--exclusive", str(own), "true"]
    assert subprocess.run(cleaner, check=False).returncode != 0
    (own / "noted").touch()

    fresh.stop_server("ana")

    eventually(lambda: not own.exists(), what="the folder is removed")


def test_servers_of_a_killed_hub_keep_theirs_until_they_end(fresh: HubPlatform):
    fresh.start_server("ana", project="vision", gpus=0.5)
    for user in ("bo", "cy"):
        fresh.start_server(user, gpus="0")
    own = {user: place(fresh, user) for user in ("ana", "bo", "cy")}
    for folder in own.values():
        (folder / "noted").touch()
    fresh.kill()
    killed = psutil.Process(fresh.pid("cy"))
    killed.kill()
    psutil.wait_procs([killed], timeout=60)
    fresh.start()

    eventually(lambda: not own["cy"].exists(), what="the folder of the ended server is removed")
    assert [(own[user] / "noted").exists() for user in ("ana", "bo")] == [True, True]
    fresh.stop_all()
    eventually(lambda: not any(folder.exists() for folder in own.values()))
