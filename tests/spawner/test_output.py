"""A notebook server's output goes to a file of its user, and to no file of the hub."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from runai.spawner.local import RunaiLocalSpawner
from runai.spawner.output import LOG_BYTES
from unix_accounts import UIDS, accounts

# The shell opens the folder to read it, and closes that descriptor before the loop.
DESCRIPTORS = """
for fd in /proc/$$/fd/*; do
    test ! -h "$fd" || { printf '%s ' "${fd##*/}"; readlink "$fd"; }
done
"""


@dataclass
class Stage:
    """A user's home, and a start of the user's server beside an open log of the hub's."""

    spawner: RunaiLocalSpawner
    home: Path
    hub_log: Path
    uid: int

    @property
    def output(self) -> Path:
        return self.home / ".local/share/runai/lab-ana.log"

    def make(self, put: Callable[[Path], object]) -> None:
        """Replace the file by something else, as the user could."""
        for folder in reversed([self.output.parent, *self.output.parent.parents]):
            if not folder.exists():
                folder.mkdir()
                os.chown(folder, self.uid, self.uid)
        put(self.output)
        os.chown(self.output, self.uid, self.uid, follow_symlinks=False)

    def run(self) -> None:
        """Run a program as the spawner runs a server, until its end."""
        with self.hub_log.open("ab") as log:
            os.set_inheritable(log.fileno(), True)
            subprocess.run(
                ["sh", "-c", DESCRIPTORS],
                preexec_fn=self.spawner.make_preexec_fn("ana"),
                stdin=log,
                stdout=log,
                stderr=log,
                check=True,
                timeout=60,
            )


@pytest.fixture(params=[False, True], ids=["one account", "system users"])
def stage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stage]:
    user, users, hub_log = SimpleNamespace(name="ana"), tmp_path / "users", tmp_path / "hub.log"
    hub_log.touch()
    if not request.param:
        (users / "ana").mkdir(parents=True)
        spawner = RunaiLocalSpawner(user=user, users_directory=str(users))
        yield Stage(spawner, users / "ana", hub_log, os.geteuid())
        return
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user")
    with accounts(monkeypatch) as homes:
        spawner = RunaiLocalSpawner(user=user, system_users=True)
        yield Stage(spawner, homes / "ana", hub_log, UIDS["ana"])


def test_a_server_has_no_descriptor_but_of_its_users_file(stage: Stage):
    stage.run()

    assert stage.output.read_text().splitlines() == [
        "0 /dev/null",
        f"1 {stage.output}",
        f"2 {stage.output}",
    ]
    assert stage.hub_log.read_text() == ""
    assert (stat.S_IMODE(stage.output.stat().st_mode), stage.output.stat().st_uid) == (
        0o600,
        stage.uid,
    )
    assert stat.S_IMODE(stage.output.parent.stat().st_mode) == 0o700


def test_existing_output_file_becomes_private_and_is_continued(stage: Stage):
    stage.make(lambda path: path.write_text("before\n"))
    stage.output.chmod(0o666)

    stage.run()

    assert stage.output.read_text().startswith("before\n0 /dev/null\n")
    assert stat.S_IMODE(stage.output.stat().st_mode) == 0o600


def test_a_large_file_is_put_aside_in_place_of_an_older_one(stage: Stage):
    aside = stage.output.with_suffix(".log.1")
    stage.make(lambda path: path.write_bytes(b"x" * (LOG_BYTES + 1)))
    aside.write_text("older")

    stage.run()

    assert aside.stat().st_size == LOG_BYTES + 1
    assert stage.output.read_text().startswith("0 /dev/null\n")


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda path: os.mkfifo(path), id="pipe"),  # noqa: PLW0108 - named for its id
        pytest.param(lambda path: path.mkdir(), id="folder"),
        pytest.param(lambda path: path.symlink_to("/dev/full"), id="link to a device"),
        pytest.param(lambda path: path.symlink_to(path.parent / "nowhere"), id="link to nothing"),
    ],
)
def test_server_starts_and_writes_nothing_if_its_output_is_no_file(stage: Stage, put):
    stage.make(put)

    stage.run()

    assert stage.hub_log.read_text() == ""
    assert not (stage.output.parent / "nowhere").exists()


def test_a_link_leads_to_no_file_of_the_platforms(stage: Stage):
    secret = stage.hub_log.with_name("secret")
    secret.write_text("the platform's")
    stage.make(lambda path: path.symlink_to(secret))

    stage.run()

    assert secret.read_text() == "the platform's"
