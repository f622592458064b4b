"""A notebook server's output goes to a file of its user, and to no file of the hub."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from runai.spawner.local import RunaiLocalSpawner
from runai.spawner.start_output import LOG_BYTES, SPARE_BYTES
from unix_accounts import UIDS, accounts

# The shell opens the folder to read it, and closes that descriptor before the loop.
LIST_DESCRIPTORS = """
for fd in /proc/$$/fd/*; do
    test ! -h "$fd" || { printf '%s ' "${fd##*/}"; readlink "$fd"; }
done
"""


@dataclass
class UserServer:
    """A user's home, and a start of the user's server beside an open log of the hub's."""

    spawner: RunaiLocalSpawner
    home: Path
    hub_log: Path
    uid: int

    @property
    def output(self) -> Path:
        return self.home / ".local/share/runai/lab-ana.log"

    def last_lines(self, script: str, **environment: str) -> str:
        """Return what the hub tells of a server that wrote this and ended."""
        self.run(script)
        return self.spawner._start_output.last_lines(environment)

    def replace_output(self, make_obstacle: Callable[[Path], object]) -> None:
        """Replace the file by something else, as the user could."""
        for folder in reversed([self.output.parent, *self.output.parent.parents]):
            if not folder.exists():
                folder.mkdir()
                os.chown(folder, self.uid, self.uid)
        make_obstacle(self.output)
        os.chown(self.output, self.uid, self.uid, follow_symlinks=False)

    def run(self, script: str = LIST_DESCRIPTORS) -> None:
        """Run a program as the spawner runs a server, until its end."""
        with self.hub_log.open("ab") as log:
            os.set_inheritable(log.fileno(), True)
            subprocess.run(
                ["sh", "-c", script],
                preexec_fn=self.spawner.make_preexec_fn("ana"),
                stdin=log,
                stdout=log,
                stderr=log,
                check=True,
                timeout=60,
            )


@pytest.fixture(params=[False, True], ids=["one account", "system users"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UserServer]:
    user, users, hub_log = SimpleNamespace(name="ana"), tmp_path / "users", tmp_path / "hub.log"
    hub_log.touch()
    if not request.param:
        (users / "ana").mkdir(parents=True)
        spawner = RunaiLocalSpawner(user=user, users_directory=str(users))
        yield UserServer(spawner, users / "ana", hub_log, os.geteuid())
        return
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user")
    with accounts() as unix:
        spawner = RunaiLocalSpawner(user=user, system_users=True)
        spawner._start_account = unix.account("ana")
        yield UserServer(spawner, unix.folder / "ana", hub_log, UIDS["ana"])


def test_notebook_server_has_only_file_descriptors_of_its_users_log(server: UserServer):
    server.run()

    assert server.output.read_text().splitlines() == [
        "0 /dev/null",
        f"1 {server.output}",
        f"2 {server.output}",
    ]
    assert server.hub_log.read_text() == ""
    assert (stat.S_IMODE(server.output.stat().st_mode), server.output.stat().st_uid) == (
        0o600,
        server.uid,
    )
    assert stat.S_IMODE(server.output.parent.stat().st_mode) == 0o700


def test_existing_notebook_server_log_becomes_private_and_is_continued(server: UserServer):
    server.replace_output(lambda path: path.write_text("before\n"))
    server.output.chmod(0o666)

    server.run()

    assert server.output.read_text().startswith("before\n0 /dev/null\n")
    assert stat.S_IMODE(server.output.stat().st_mode) == 0o600


def test_large_notebook_server_log_is_rotated_over_the_older_log(server: UserServer):
    older_log = server.output.with_suffix(".log.1")
    server.replace_output(lambda path: path.write_bytes(b"x" * (LOG_BYTES + 1)))
    older_log.write_text("older")

    server.run()

    assert older_log.stat().st_size == LOG_BYTES + 1
    assert server.output.read_text().startswith("0 /dev/null\n")


@pytest.mark.parametrize(
    "make_obstacle",
    [
        pytest.param(lambda path: os.mkfifo(path), id="pipe"),  # noqa: PLW0108 - named for its id
        pytest.param(lambda path: path.mkdir(), id="folder"),
        pytest.param(lambda path: path.symlink_to("/dev/full"), id="link to a device"),
        pytest.param(lambda path: path.symlink_to(path.parent / "nowhere"), id="link to nothing"),
    ],
)
def test_notebook_server_starts_and_writes_no_log_if_the_log_path_is_no_file(
    server: UserServer, make_obstacle
):
    server.replace_output(make_obstacle)

    server.run()

    assert server.hub_log.read_text() == ""
    assert not (server.output.parent / "nowhere").exists()


def test_notebook_server_log_replaced_by_a_symlink_writes_no_platform_file(server: UserServer):
    secret = server.hub_log.with_name("secret")
    secret.write_text("the platform's")
    server.replace_output(lambda path: path.symlink_to(secret))

    server.run()

    assert secret.read_text() == "the platform's"


# -- the last lines of a start ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("echo one; echo two >&2", "one\ntwo", id="output and errors"),
        pytest.param("seq 30", "\n".join(map(str, range(11, 31))), id="last 20 lines"),
        pytest.param("printf '%05000d' 7", f"{7:05000d}"[-4096:], id="last 4096 characters"),
        pytest.param("seq 100000; echo last", "last", id="end of a long output"),
        pytest.param(
            "printf '\\033[31mred\\033[0m\\a\\r\\nnext\\tone'", "red\nnext\tone", id="escapes"
        ),
        pytest.param("echo '<b>&amp;'", "<b>&amp;", id="markup as text"),
        pytest.param("printf '\\377'", "\N{REPLACEMENT CHARACTER}", id="invalid UTF-8"),
        pytest.param("true", "", id="no output"),
        pytest.param("echo secret-value-1", "…", id="secret of its environment"),
        pytest.param(
            "echo '?token=abc&x=1 Password: \"x y\"'", '?token=…&x=1 Password: "… y"', id="fields"
        ),
    ],
)
def test_last_lines_of_a_server_start_are_plain_text_without_secrets(
    server: UserServer, script, expected
):
    server.replace_output(lambda path: path.write_text("of an earlier start\n"))

    lines = server.last_lines(script, MY_TOKEN="secret-value-1", HOME=str(server.home))

    assert lines.splitlines()[-len(expected.splitlines()) :] == expected.splitlines()
    assert "earlier" not in lines
    assert len(lines) <= 4096


def test_last_lines_of_a_server_start_mask_a_secret_cut_by_the_size_limit(server: UserServer):
    padding = "x" * 4090  # of 4096 characters: the secret loses its beginning

    lines = server.last_lines(f"echo secret-value-1{padding}", MY_TOKEN="secret-value-1")

    assert lines == f"…{padding}"


def test_last_lines_of_a_server_start_exclude_the_rotated_log(server: UserServer):
    server.replace_output(lambda path: path.write_bytes(b"x" * (LOG_BYTES + 1)))

    assert server.last_lines("echo new") == "new"


@pytest.mark.parametrize(
    "make_obstacle",
    [
        pytest.param(lambda path: path.mkdir(), id="folder in its place"),
        pytest.param(lambda path: os.mkfifo(path), id="pipe in its place"),  # noqa: PLW0108
        pytest.param(lambda path: path.symlink_to("/etc/passwd"), id="link in its place"),
    ],
)
def test_last_lines_of_a_server_start_are_available_without_a_usable_log(
    server: UserServer, make_obstacle
):
    server.replace_output(make_obstacle)

    assert server.last_lines("echo why; echo more >&2") == "why\nmore"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=["full disk", "quota"])
def test_last_lines_of_a_server_start_are_available_on_a_full_disk(
    server: UserServer, code, monkeypatch
):
    def raise_no_space(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", raise_no_space)

    assert server.last_lines("echo why") == "why"
    assert server.output.read_text() == ""


def test_last_lines_of_a_server_start_without_a_log_use_bounded_memory(server: UserServer):
    server.replace_output(lambda path: path.mkdir())

    lines = server.last_lines("seq 1000000; touch went-on")

    assert (server.home / "went-on").exists()
    assert os.fstat(server.spawner._start_output._spare).st_size == SPARE_BYTES
    assert lines.startswith("1")


@pytest.mark.parametrize("part", [".local", ".local/share", ".local/share/runai", ""])
def test_last_lines_of_a_server_start_are_not_read_through_a_symlink(server: UserServer, part):
    """The user can replace any part between the server's end and the hub's look."""
    name = server.output.relative_to(server.home)
    server.run("echo mine")
    foreign_home = server.hub_log.parent / "other"
    target = foreign_home / name
    target.parent.mkdir(parents=True)
    target.write_text("the platform's")
    os.chown(target, server.uid, server.uid)
    link = server.home / (part or name)
    link.rename(link.with_name("aside"))
    link.symlink_to(foreign_home / (part or name))

    assert server.spawner._start_output.last_lines({}) == ""


def test_last_lines_of_a_server_start_are_not_read_from_a_foreign_accounts_file(server: UserServer):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    server.run("echo mine")
    foreign_uid = 54_399
    os.chown(server.output, foreign_uid, foreign_uid)

    assert server.spawner._start_output.last_lines({}) == ""
