"""The data directory: private, one platform at a time, ports that stay."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from runai.embedded.directory import LOG_BYTES, DataDirectory, write_private
from runai.hub_service.errors import Conflict, InvalidRequest


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("", 0o700),
        ("secrets", 0o700),
        ("users", 0o700),
        ("secrets/cookie_secret", 0o600),
        ("secrets/hub_token", 0o600),
    ],
)
def test_only_the_owner_may_look_inside(directory: DataDirectory, path: str, wanted: int):
    assert mode(directory.root / path) == wanted


def test_permissions_are_put_right_and_secrets_stay(directory: DataDirectory):
    token = directory.hub_token()
    directory.root.chmod(0o755)
    (directory.secrets / "hub_token").chmod(0o644)
    directory.prepare(system_users=False)

    assert mode(directory.root) == 0o700
    assert mode(directory.secrets / "hub_token") == 0o600
    assert directory.hub_token() == token


def test_system_users_may_pass_through_to_their_jobs_and_see_no_secret(directory: DataDirectory):
    directory.prepare(system_users=True)

    assert mode(directory.root) == 0o711
    assert mode(directory.secrets) == 0o700


def test_an_admins_own_configuration_is_private_too(directory: DataDirectory):
    directory.own_config.write_text("c.LDAPAuthenticator.lookup_dn_search_password = 'x'")
    directory.prepare(system_users=True)

    assert mode(directory.own_config) == 0o600


def test_secrets_are_long_and_of_their_own(directory: DataDirectory):
    assert len(directory.hub_token()) == 64
    assert directory.hub_token() != directory.cookie_secret.read_text()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"file/data cannot be used: Not a directory.*--data"):
        DataDirectory(tmp_path / "file" / "data").prepare(system_users=False)


def test_a_second_platform_is_told_where_the_first_one_is(directory: DataDirectory):
    held = directory.lock("http://127.0.0.1:8000/ (process 7)")
    with pytest.raises(Conflict, match=r"already: http://127\.0\.0\.1:8000/ \(process 7\)"):
        directory.lock("another")
    os.close(held)

    os.close(directory.lock("another"))


def test_the_lock_lives_on_in_the_program_that_follows(directory: DataDirectory):
    held = directory.lock("this process")

    assert os.get_inheritable(held)
    assert not fcntl.fcntl(held, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(held)


def test_a_port_stays_while_it_is_free(directory: DataDirectory):
    port = directory.stable_port("hub")
    again = directory.stable_port("hub")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        moved = directory.stable_port("hub")

    assert again == port
    assert moved != port
    assert directory.stable_port("hub") == moved


def test_a_private_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")

    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_log_grown_large_is_put_aside(directory: DataDirectory):
    directory.hub_log.write_bytes(b"x" * (LOG_BYTES + 1))
    descriptor = directory.open_log()
    os.write(descriptor, b"new\n")
    os.close(descriptor)

    assert directory.hub_log.read_bytes() == b"new\n"
    assert directory.hub_log.with_suffix(".log.1").stat().st_size == LOG_BYTES + 1
    assert mode(directory.hub_log) == 0o600
