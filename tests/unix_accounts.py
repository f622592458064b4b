"""Unix accounts for tests that run as root: most are numbers, with real processes and files."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.account_states import AccountStates
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.processes.user_account import UnixAccount

UIDS = {"ana": 54_321, "pat": 54_322}
ANSWERS = """
import json, sys, time
answer = json.load(open(sys.argv[1])).get(sys.argv[2], {"local": False})
time.sleep(600 if answer == "silence" else 0)
print(json.dumps(answer))
"""
"""Stands in for the program that asks the account directory: same arguments, same output."""
STATES = """
import json, sys
states = {name: [0, "", ""] for name in sys.argv[3:]} | json.load(open(sys.argv[1]))
print(json.dumps(states))
"""
"""Stands in for the program that asks PAM."""


@dataclass(frozen=True)
class Accounts:
    """Homes in a folder, and what the account directory answers for each name."""

    folder: Path

    def answer(self, user: str, reply: Any) -> None:
        """Let the directory give this answer from now on; "silence": none."""
        path = self.folder / "answers.json"
        answers = json.loads(path.read_text()) if path.exists() else {}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(answers | {user: reply}))
        new.replace(path)

    def state(self, user: str, code: int, text: str = "", nologin: str = "") -> None:
        """Let PAM answer this from now on."""
        new = self.folder / "states.new"
        new.write_text(json.dumps({user: (code, text, nologin)}))
        new.replace(self.folder / "states.json")

    def states(self, **options: Any) -> AccountStates:
        """Return the states of accounts, of which all are well at first."""
        path = self.folder / "states.json"
        path.write_text("{}")
        command = (sys.executable, "-I", "-S", "-c", STATES, str(path))
        return AccountStates("login", command=command, **options)

    def entry(self, user: str, **changed: Any) -> dict[str, Any]:
        """Return the answer for an account, with changes."""
        uid = UIDS[user]
        home = str(self.folder / user)
        return {
            "local": True,
            "uid": uid,
            "gid": uid,
            "home": home,
            "shell": "/bin/sh",
            "groups": [uid],
            "directory_groups": [],
            "silent_groups": [],
            "home_fault": "",
            "umask": "022",
            **changed,
        }

    def account(self, user: str) -> UnixAccount:
        """Return the account of a user."""
        uid = UIDS[user]
        return UnixAccount(user, self.folder / user, uid, uid, "/bin/sh", (uid,), "022")

    def directory(self, data_dir: Path, **options: Any) -> AccountDirectory:
        """Return the directory as the platform of a data directory sees it."""
        command = (sys.executable, "-I", "-S", "-c", ANSWERS, str(self.folder / "answers.json"))
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return AccountDirectory(KnownAccounts(data_dir), command=command, **options)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every account may pass through: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def accounts() -> Iterator[Accounts]:
    """Make a home for each user, which that user can reach."""
    with open_folder() as folder:
        users = Accounts(folder)
        for user, uid in UIDS.items():
            home = folder / user
            home.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(home, uid, uid)
            users.answer(user, users.entry(user))
        yield users


@contextmanager
def real_accounts(**gecos: str) -> Iterator[tuple[Path, list[str], str]]:
    """Make a Unix account for each user, with its GECOS field, and a group that they share.

    Yield their homes' folder, their names, which end in a random part, and the group's.
    """
    group = f"g{uuid4().hex[:12]}"
    names = {user: f"{user}-{uuid4().hex[:12]}" for user in gecos}
    with open_folder() as folder:
        subprocess.run(["groupadd", group], check=True)
        try:
            for user, name in names.items():
                options = ["-m", "-d", str(folder / user), "-U", "-G", group, "-c", gecos[user]]
                subprocess.run(["useradd", *options, "-s", "/bin/sh", name], check=True)
            yield folder, list(names.values()), group
        finally:
            for name in names.values():
                subprocess.run(["userdel", name], check=False)
            subprocess.run(["groupdel", group], check=False)


def as_user(user: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script as one of the users."""
    # A program changes the account: Python would fork for it, beside the threads of whatever the
    # tests before this one have imported.
    account = str(UIDS[user])
    change = ["setpriv", "--clear-groups", "--reuid", account, "--regid", account]
    return subprocess.run(
        [*change, "sh", "-c", script], cwd="/", capture_output=True, text=True, check=False
    )


@contextmanager
def new_account() -> Iterator[pwd.struct_passwd]:
    """Make an account of the machine, with a home."""
    name = f"runai-{uuid4().hex[:12]}"
    with open_folder() as folder:
        options = ["--create-home", "--shell", "/bin/sh", "--base-dir", str(folder)]
        subprocess.run(["useradd", *options, name], check=True)
        try:
            yield pwd.getpwnam(name)
        finally:
            subprocess.run(["userdel", name], check=True)


@contextmanager
def pam_service(*lines: str) -> Iterator[str]:
    """Write a service of PAM with these lines; return its name."""
    name = f"runai-test-{uuid4().hex}"
    file = Path("/etc/pam.d", name)
    try:
        file.write_text("".join(f"{line}\n" for line in lines))
        yield name
    finally:
        file.unlink(missing_ok=True)
