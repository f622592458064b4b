"""Values of a deleted job's variables are in no file of a platform, and in no later backup."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hub_platform import HubPlatform
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]

PLANTED = "planted-5c1e9b"


def files_with(text: str, folder: Path) -> list[Path]:
    """Return the files below a folder whose content has a text."""
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # removed meanwhile
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path)
    return found


def test_values_of_a_deleted_jobs_variables_are_in_no_file_and_in_no_later_backup(
    start_platform: Callable[[], HubPlatform],
):
    platform = start_platform()
    bob, data_dir = platform.client("bob"), platform.data_dir
    request = SubmitRequest(name="short", gpus=1, command=["true"], env={"API_KEY": PLANTED})
    bob.submit(request)
    eventually(lambda: bob.workload("vision/short").state == "succeeded", within=90)
    assert files_with(PLANTED, data_dir)

    bob.delete("vision/short")

    eventually(lambda: not files_with(PLANTED, data_dir), what="no file has the value")
    backup = [sys.executable, "-m", "runai.hub_service.cli", "backup", "--data-dir", str(data_dir)]
    subprocess.run(backup, check=True, capture_output=True)
    assert list(data_dir.glob("**/backup.json"))
    assert files_with(PLANTED, data_dir) == []
