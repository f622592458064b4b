"""Starts that cannot use a path: jobs and sessions name what is in the way, and whose it is.

Forks, accounts and files are real; only the names of the accounts are not.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.clusters.local.supervisor import worker_start
from runai.hub_service.processes.path_faults import path_fault
from runai.hub_service.processes.user_account import UnixAccount
from runai.spawner.admission import SessionRefused
from runai.spawner.local import RUNTIME, RunaiLocalSpawner
from runai.spawner.settings_folder import SettingsFolder
from unix_accounts import UIDS, accounts

ANA, PAT = UIDS["ana"], UIDS["pat"]
OWNED_BY_PAT = f"owner uid {PAT}, mode"
OWNED_BY_ANA = f"owner uid {ANA}, mode"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with the homes of ana and pat, which both may pass through."""
    with accounts() as unix:
        yield unix.folder


def set_owner(path: Path, uid: int, mode: int, group: int | None = None) -> Path:
    """Change owner and mode of a path; make it a folder if it is missing."""
    if not path.exists():
        path.mkdir()
    os.chown(path, uid, uid if group is None else group)
    path.chmod(mode)
    return path


def remove(folder: Path) -> Path:
    folder.rmdir()
    return folder


def file(path: Path, uid: int = ANA, mode: int = 0o644, text: str = "") -> Path:
    path.write_text(text)
    return set_owner(path, uid, mode)


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


# -- homes: the same for a job and a session -------------------------------------------------------

BAD_HOMES: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "missing": (lambda home: home.rmdir(), "{home} is not there", True),
    "folder above missing": (
        lambda home: home.parent.rename(home.parents[1] / "away"),
        "{home} is not there",
        True,
    ),
    "link to nowhere": (
        lambda home: link(remove(home), home.parents[1] / "nfs/ana"),
        "{folder}/nfs/ana is not there",
        True,
    ),
    "a file": (lambda home: file(remove(home)), "{home} is a file, not a folder", False),
    "of root": (
        lambda home: set_owner(home, 0, 0o755),
        "{home} belongs to root (uid 0), not to ana",
        False,
    ),
    "of another account, closed": (
        lambda home: set_owner(home, PAT, 0o700),
        f"{{home}} belongs to uid {PAT}, not to ana",
        False,
    ),
    "not writable": (
        lambda home: set_owner(home, ANA, 0o500),
        f"ana cannot write to {{home}} ({OWNED_BY_ANA} 0500)",
        False,
    ),
    "below a closed folder": (
        lambda home: set_owner(home.parent, 0, 0o700),
        "ana cannot enter {parent} (owner root, mode 0700)",
        False,
    ),
    "with a file in the way": (
        lambda home: file(home / ".local"),
        "{home}/.local is a file, not a folder",
        False,
    ),
    "with a folder of another account": (
        lambda home: set_owner(home / ".local", PAT, 0o755),
        f"ana cannot write to {{home}}/.local ({OWNED_BY_PAT} 0755)",
        False,
    ),
}
USABLE_HOMES: dict[str, Callable[[Path], object]] = {
    "of its account": lambda home: set_owner(home, ANA, 0o700),
    "of root, for a group": lambda home: set_owner(home, 0, 0o770, group=ANA),
    "of root, with a folder of the account": lambda home: (
        set_owner(home / ".local", ANA, 0o700),
        set_owner(home, 0, 0o755),
    ),
    "link": lambda home: (home.rename(home.with_name("real")), link(home, home.with_name("real"))),
}


@pytest.fixture
def home(folder: Path) -> Path:
    """Ana's home, in a folder that a case may close or remove."""
    home = set_owner(folder / "homes", 0, 0o755) / "ana"
    (folder / "ana").rename(home)
    return home


def fill_paths(text: str, home: Path) -> str:
    return text.format(home=home, parent=home.parent, folder=home.parents[1])


@pytest.mark.parametrize(("change_home", "text", "is_away"), BAD_HOMES.values(), ids=BAD_HOMES)
def test_job_with_an_unusable_home_fails_with_the_reason(home, change_home, text, is_away):
    change_home(home)

    checkpoint_dir = home / ".local/share/runai/vision/exp/checkpoints"
    started = start(home, workdir="/", directories=[str(checkpoint_dir)])

    assert started.why == f"cannot start: {fill_paths(text, home)}"
    assert started.is_home_away == is_away
    assert not started.lacks_room


@pytest.mark.parametrize(("change_home", "text", "is_away"), BAD_HOMES.values(), ids=BAD_HOMES)
def test_session_with_an_unusable_home_is_refused(home, change_home, text, is_away):
    change_home(home)

    refused = refused_session(spawner(home))

    message = f"Your server cannot start: {fill_paths(text, home)}. Ask an admin of this machine."
    assert refused.jupyterhub_message.startswith(message)
    assert refused.reason == ("home_away" if is_away else "account_cannot")


@pytest.mark.parametrize("change_home", USABLE_HOMES.values(), ids=USABLE_HOMES)
def test_job_and_session_start_with_any_usable_home(home, change_home):
    change_home(home)

    spawner(home)._check_account()
    started = start(home, directories=[str(home / ".local/share/runai/vision/exp")])

    assert started.why == ""


def test_session_without_settings_needs_no_writable_home(home):
    set_owner(home, 0, 0o755)
    session = spawner(home)
    assert refused_session(session).jupyterhub_message.endswith("Start without my settings.")
    assert session.has_failed  # so the form offers it

    session._settings = SettingsFolder()

    session._check_account()


def test_session_with_its_runtime_folder_elsewhere_needs_no_writable_home(home):
    set_owner(home, 0, 0o755)

    spawner(home, environment={"JUPYTER_RUNTIME_DIR": "/tmp"})._check_account()


def test_account_check_of_a_session_creates_a_private_runtime_folder(home):
    spawner(home)._check_account()

    status = (home / RUNTIME).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ANA, ANA, 0o700)


# -- other paths of a job --------------------------------------------------------------------------

BAD_PATHS: dict[str, tuple[Callable[[Path], dict[str, object]], str]] = {
    "checkpoint folder below a file": (
        lambda home: {"directories": [f"{file(home / 'ckpt')}/vision/exp"]},
        "cannot start: {home}/ckpt is a file, not a folder",
    ),
    "checkpoint folder is a file": (
        lambda home: {"directories": [str(file(home / "ckpt"))]},
        "cannot start: {home}/ckpt is a file, not a folder",
    ),
    "checkpoint folder in another account's home": (
        lambda home: {"directories": [str(home.parents[1] / "pat/ckpt")]},
        f"cannot start: ana cannot enter {{folder}}/pat ({OWNED_BY_PAT} 0700)",
    ),
    "program's folder of another account": (
        lambda home: {"files": {f"{set_owner(home / 'exp', PAT, 0o755)}/source.py": ""}},
        f"cannot start: ana cannot write to {{home}}/exp ({OWNED_BY_PAT} 0755)",
    ),
    "program's text of another account": (
        lambda home: {"files": {str(file(home / "source.py", PAT)): ""}},
        f"cannot start: ana cannot write to {{home}}/source.py ({OWNED_BY_PAT} 0644)",
    ),
    "program's text of another account, writable": (
        lambda home: {"files": {str(file(home / "source.py", PAT, 0o666)): ""}},
        f"cannot start: {{home}}/source.py belongs to uid {PAT}, not to ana",
    ),
    "program's text is a folder": (
        lambda home: {"files": {str(set_owner(home / "source.py", ANA, 0o700)): ""}},
        "cannot start: {home}/source.py is a folder, not a file",
    ),
    "working directory missing": (
        lambda home: {"workdir": f"{home}/proj"},
        "cannot start: {home}/proj is not there",
    ),
    "working directory below a missing one": (
        lambda home: {"workdir": f"{home}/proj/a"},
        "cannot start in {home}/proj/a: {home}/proj is not there",
    ),
    "working directory closed": (
        lambda home: {"workdir": str(set_owner(home / "proj", PAT, 0o700))},
        f"cannot start: ana cannot enter {{home}}/proj ({OWNED_BY_PAT} 0700)",
    ),
    "working directory is a file": (
        lambda home: {"workdir": str(file(home / "proj"))},
        "cannot start: {home}/proj is a file, not a folder",
    ),
    "program below a closed folder": (
        lambda home: {"command": [str(closed_program(home))]},
        "cannot start {home}/closed/python: ana cannot enter {home}/closed (owner root, mode 0700)",
    ),
    "link to a program below a closed folder": (
        lambda home: {"command": [str(link(home / "python", closed_program(home)))]},
        "cannot start {home}/python: ana cannot enter {home}/closed (owner root, mode 0700)",
    ),
    "interpreter below a closed folder": (
        lambda home: {
            "command": [str(file(home / "tool", ANA, 0o755, f"#!{closed_program(home)} -u\n"))]
        },
        "cannot start {home}/tool: ana cannot enter {home}/closed (owner root, mode 0700)",
    ),
    "program on a PATH that is closed": (
        lambda home: {"command": ["no-program"], "path": str(closed_program(home).parent)},
        "cannot start no-program: ana cannot enter {home}/closed (owner root, mode 0700)",
    ),
    "not a program": (
        lambda home: {"command": [str(file(home / "train.py"))]},
        f"cannot start: ana cannot execute {{home}}/train.py ({OWNED_BY_ANA} 0644)",
    ),
}


def closed_program(home: Path) -> Path:
    set_owner(home / "closed", 0, 0o700)
    return file(home / "closed/python", 0, 0o755)


@pytest.mark.parametrize(("prepare_fields", "text"), BAD_PATHS.values(), ids=BAD_PATHS)
def test_job_failure_names_the_path_that_its_account_cannot_use(home, prepare_fields, text):
    started = start(home, **prepare_fields(home))

    assert started.why == fill_paths(text, home)
    assert not started.is_home_away


def test_session_with_an_unreachable_program_is_refused(home):
    program = closed_program(home)

    refused = refused_session(spawner(home, cmd=[str(program)]))

    assert refused.jupyterhub_message == (
        f"Your server cannot start {program}: ana cannot enter {home}/closed"
        " (owner root, mode 0700). Ask an admin of this machine."
    )


# -- disks that are away ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error", "is_away"),
    [
        pytest.param("ana", errno.ESTALE, True, id="home"),
        pytest.param("ana/exp", errno.EIO, True, id="below the home"),
        pytest.param("ana/exp/a/b", errno.ENOTCONN, True, id="far below the home"),
        pytest.param("", errno.ETIMEDOUT, True, id="above the home"),
        pytest.param("pat", errno.ESTALE, False, id="elsewhere"),
        pytest.param("ana", errno.ENOSPC, False, id="full"),
    ],
)
def test_disk_error_under_a_home_is_reported_as_an_unavailable_home(folder, path, error, is_away):
    place = f"{folder / path}"

    fault = path_fault(place, error, "ana", f"{folder}/ana")

    assert fault.is_home_away == is_away
    assert os.strerror(error) in fault.text
    assert str(folder) in fault.text


# -- starts ----------------------------------------------------------------------------------------

START_PROGRAM = """
import json, os, sys
sys.path.append(sys.argv[1])
import subreaper, worker_start  # subreaper completes the path
spec, environment = json.load(sys.stdin)
started = worker_start.start(spec, environment, os.open(os.devnull, os.O_WRONLY))
os.waitpid(started.pid, 0)
print(json.dumps(started))
"""


def start(home: Path, path: str = os.defpath, **fields: Any) -> worker_start.StartOutcome:
    """Start a worker of ana as a supervisor does; return the outcome after its end."""
    instructions: dict[str, Any] = {
        "command": ["true"],
        "workdir": str(home),
        "grace_seconds": 1.0,
    } | fields
    account: dict[str, Any] = {"uid": ANA, "gid": ANA, "user": "ana", "home": str(home)}
    spec = asdict(Instructions(**instructions, **account))
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", START_PROGRAM, str(Path(worker_start.__file__).parent)],
        input=json.dumps([spec, {"PATH": path}]),
        capture_output=True,
        text=True,
        check=True,
    )
    return worker_start.StartOutcome(*json.loads(result.stdout))


def spawner(home: Path, **settings: Any) -> RunaiLocalSpawner:
    user, cmd = SimpleNamespace(name="ana"), ["/bin/sh"]
    result = RunaiLocalSpawner(user=user, system_users=True, **{"cmd": cmd, **settings})
    result._start_account = UnixAccount("ana", home, ANA, ANA, groups=(ANA,))
    return result


def refused_session(session_spawner: RunaiLocalSpawner) -> SessionRefused:
    with pytest.raises(SessionRefused) as refused:
        session_spawner._check_account()
    return refused.value
