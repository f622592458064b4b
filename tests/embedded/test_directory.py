"""The data directory: private, one platform at a time, ports that stay."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from runai.embedded.data_directory import DataDirectory, write_private
from runai.embedded.proxy.public_address import MOST_PORT
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest
from unix_accounts import open_folder

OTHER_UID = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_data_directory_and_secrets_are_accessible_only_to_the_owner(directory: DataDirectory):
    expected = {
        ".": 0o700,
        "secrets": 0o700,
        "users": 0o700,
        "secrets/cookie_secret": 0o600,
        "secrets/hub_token": 0o600,
    }

    assert {path: mode(directory.root / path) for path in expected} == expected


def test_data_directory_preparation_corrects_permissions_and_preserves_secrets(
    directory: DataDirectory,
):
    token = directory.hub_token()
    directory.root.chmod(0o755)
    (directory.secrets / "hub_token").chmod(0o644)
    directory.prepare(system_users=False)

    assert mode(directory.root) == 0o700
    assert mode(directory.secrets / "hub_token") == 0o600
    assert directory.hub_token() == token


def test_system_users_can_traverse_the_data_directory_but_not_its_secrets(directory: DataDirectory):
    directory.prepare(system_users=True)

    assert mode(directory.root) == 0o711
    assert mode(directory.secrets) == 0o700


def test_data_directory_preparation_makes_admins_config_file_private(directory: DataDirectory):
    directory.own_config.write_text("c.LDAPAuthenticator.lookup_dn_search_password = 'x'")
    directory.prepare(system_users=True)

    assert mode(directory.own_config) == 0o600


def test_hub_secrets_are_long_and_distinct(directory: DataDirectory):
    assert len(directory.hub_token()) == 64
    assert directory.hub_token() != directory.cookie_secret.read_text()


def test_unusable_data_directory_is_named_in_the_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"file/data cannot be used: Not a directory.*--data"):
        DataDirectory(tmp_path / "file" / "data").prepare(system_users=False)


def test_data_directory_lock_conflict_names_the_running_platform(directory: DataDirectory):
    lock_fd = directory.lock("http://127.0.0.1:8000/ (process 7)")
    with pytest.raises(Conflict, match=r"already: http://127\.0\.0\.1:8000/ \(process 7\)"):
        directory.lock("another")
    os.close(lock_fd)

    os.close(directory.lock("another"))


def test_data_directory_lock_is_inherited_by_the_executed_program(directory: DataDirectory):
    lock_fd = directory.lock("this process")

    assert os.get_inheritable(lock_fd)
    assert not fcntl.fcntl(lock_fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(lock_fd)


def test_stable_port_changes_only_if_the_port_is_taken(directory: DataDirectory):
    port = directory.stable_port("hub")
    second_port = directory.stable_port("hub")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        new_port = directory.stable_port("hub")

    assert second_port == port
    assert new_port != port
    assert directory.stable_port("hub") == new_port


@pytest.mark.parametrize("text", [b"", b"0", b"99999", b"8" * 5000, b"\xff\xfe", b"-1", b"80 80"])
def test_damaged_port_file_is_replaced_by_a_new_port(directory: DataDirectory, text: bytes):
    (directory.root / "hub.port").write_bytes(text)

    port = directory.stable_port("hub")

    assert 0 < port <= MOST_PORT
    assert directory.stable_port("hub") == port


def test_write_private_replaces_content_and_permissions(tmp_path: Path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")

    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


@contextmanager
def running_as(uid: int) -> Generator[None]:
    """Run the block as another account, for the kernel's permission checks."""
    before = os.geteuid()
    if uid != before:
        os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Create a folder that every account may traverse."""
    with open_folder() as folder:
        yield folder


def platform_of(uid: int, folder: Path) -> DataDirectory:
    """Create a data directory with a file of each kind, all owned by one account."""
    directory = DataDirectory(folder / "data")
    directory.prepare(system_users=False)
    (directory.users / "ana").mkdir(mode=0o700)
    for name in ("jupyterhub_config.py", "projects.yaml", "cluster.sqlite", "json.py", "target"):
        (directory.root / name).touch()
    (directory.root / "linked.py").symlink_to("target")
    for path in [directory.root, *directory.root.rglob("*")]:
        if uid != os.geteuid():
            os.chown(path, uid, -1, follow_symlinks=False)
    return directory


def modes(directory: DataDirectory) -> dict[Path, int]:
    return {path: mode(path) for path in [directory.root, *directory.root.rglob("*")]}


TRUSTED_PATHS = (
    ".",
    "jupyterhub_config.py",
    "projects.yaml",
    "cluster.sqlite",
    "json.py",
    "linked.py",
    "users",
    "secrets",
    "secrets/hub_token",
)
WRITABLE_PATHS = list(zip(TRUSTED_PATHS, cycle([0o020, 0o002]), strict=False))
"""Every trusted path, made writable by its group or by all accounts, in turn."""


@needs_root
@pytest.mark.parametrize(
    ("path", "uid", "owner"),
    [*((path, 0, OTHER_UID) for path in TRUSTED_PATHS), ("json.py", OTHER_UID, OTHER_UID + 1)],
)
def test_platform_files_of_a_foreign_owner_are_refused_without_changes(
    folder: Path, path: str, uid: int, owner: int
):
    directory = platform_of(uid, folder)
    os.chown(directory.root / path, owner, -1, follow_symlinks=False)
    before = modes(directory)
    refusal = pytest.raises(Forbidden, match=f"{directory.root / path} belongs to {owner}.*chown")
    with running_as(uid), refusal:
        directory.restrict_permissions()

    assert modes(directory) == before


@needs_root
def test_link_in_the_data_directory_to_a_foreign_owners_file_is_refused(folder: Path):
    directory = platform_of(0, folder)
    foreign_file = folder / "theirs"
    foreign_file.touch()
    os.chown(foreign_file, OTHER_UID, -1)
    (directory.root / "linked.py").unlink()
    (directory.root / "linked.py").symlink_to(foreign_file)

    with pytest.raises(Forbidden, match=rf"linked\.py belongs to {OTHER_UID}"):
        directory.restrict_permissions()


@needs_root
@pytest.mark.parametrize("uid", [0, OTHER_UID], ids=["root", "user"])
def test_platform_files_owned_by_root_or_the_platforms_account_are_accepted(folder: Path, uid: int):
    directory = platform_of(uid, folder)
    os.chown(directory.root / "projects.yaml", 0, -1)
    (directory.root / "broken").symlink_to("nowhere")
    os.chown(directory.root / "broken", uid, -1, follow_symlinks=False)
    with running_as(uid):
        assert directory.restrict_permissions() == []


@pytest.mark.parametrize(("path", "write_bit"), WRITABLE_PATHS)
def test_user_platform_removes_write_permission_of_other_accounts_from_its_files(
    folder: Path, path: str, write_bit: int
):
    uid = os.geteuid() or OTHER_UID
    directory = platform_of(uid, folder)
    writable_path = directory.root / path
    writable_path.chmod(mode(writable_path) | write_bit)
    with running_as(uid):
        restricted_paths = directory.restrict_permissions()

    assert {path.resolve() for path in restricted_paths} == {writable_path.resolve()}
    assert not mode(writable_path) & 0o022


@needs_root
@pytest.mark.parametrize(("path", "write_bit"), WRITABLE_PATHS)
def test_root_platform_refuses_files_that_other_accounts_can_write(
    folder: Path, path: str, write_bit: int
):
    directory = platform_of(0, folder)
    (directory.root / path).chmod(mode(directory.root / path) | write_bit)
    before = modes(directory)
    with pytest.raises(Forbidden, match=r"can be written by others.*chmod go-w"):
        directory.restrict_permissions()

    assert modes(directory) == before


def test_empty_data_directory_loses_write_permission_of_other_accounts(folder: Path):
    root = folder / "data"
    root.mkdir()
    root.chmod(0o777)

    assert DataDirectory(root).restrict_permissions() == [root]
    assert mode(root) == 0o755


@needs_root
def test_user_may_use_a_data_directory_below_folders_of_other_accounts(folder: Path):
    directory = platform_of(OTHER_UID, folder)
    os.chown(folder, OTHER_UID + 1, -1)
    folder.chmod(0o777)
    with running_as(OTHER_UID):
        assert directory.restrict_permissions() == []
