"""Unix accounts for tests that run as root: numbers, processes and files are real, not names."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UIDS = {"ana": 54_321, "pat": 54_322}


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every account may pass through: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a home for each user, which that user can reach."""
    with open_folder() as folder:
        entries = {}
        for user, uid in UIDS.items():
            home = folder / user
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
            entries[user] = pwd.struct_passwd((user, "x", uid, uid, "", str(home), "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)
        yield folder


def as_user(user: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script as one of the users."""
    # A program changes the account: Python would fork for it, beside the threads of whatever the
    # tests before this one have imported.
    account = str(UIDS[user])
    change = ["setpriv", "--clear-groups", "--reuid", account, "--regid", account]
    return subprocess.run(
        [*change, "sh", "-c", script], cwd="/", capture_output=True, text=True, check=False
    )
