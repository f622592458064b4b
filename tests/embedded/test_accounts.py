"""Accounts of the data directory: passwords hashed, files private, changes without a restart."""

from __future__ import annotations

import json
import re
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runai.embedded.accounts.accounts import Accounts, Removal
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound, Unavailable

PASSWORD = "correct horse"


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare(system_users=False)
    return directory


@pytest.fixture
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hashing cheap; its real cost is tested by `test_password_hash_is_slow_and_salted`."""
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 16)


@pytest.fixture
def accounts(directory: DataDirectory, quick_hashes: None) -> Accounts:
    return Accounts(directory)


def read_passwords(directory: DataDirectory) -> dict[str, str]:
    """Return the contents of `passwords.txt`."""
    words = directory.passwords.read_text().split()
    return dict(zip(words[::2], words[1::2], strict=True))


def test_first_accounts_are_an_admin_and_two_members(accounts: Accounts, directory: DataDirectory):
    passwords = accounts.make_first()

    assert {a.name: a.admin for a in accounts.all().values()} == {
        "admin": True,
        "bob": False,
        "patty": False,
    }
    assert read_passwords(directory) == passwords
    assert all(accounts.check(name, password) for name, password in passwords.items())


def test_second_platform_start_adds_no_accounts(accounts: Accounts):
    accounts.make_first()

    assert accounts.make_first() == {}


def test_first_passwords_are_different_and_hard_to_guess(accounts: Accounts):
    passwords = accounts.make_first()

    assert len(set(passwords.values())) == len(passwords)
    assert all(re.fullmatch(r"[\w-]{20}", password) for password in passwords.values())


def test_account_files_are_readable_by_the_owner_only(accounts: Accounts, directory: DataDirectory):
    accounts.make_first()

    for file in ("accounts.json", "passwords.txt", "accounts.lock"):
        assert stat.S_IMODE((directory.secrets / file).stat().st_mode) == 0o600, file


def test_chosen_password_is_stored_only_as_a_hash(accounts: Accounts, directory: DataDirectory):
    accounts.add("carol", PASSWORD)

    assert accounts.check("carol", PASSWORD)
    assert PASSWORD not in directory.accounts.read_text()
    assert not directory.passwords.exists() or "carol" not in read_passwords(directory)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("carol", ""),
        ("carol", PASSWORD.upper()),
        ("nobody", PASSWORD),
    ],
)
def test_password_check_refuses_wrong_passwords_and_unknown_users(
    accounts: Accounts, name: str, password: str
):
    accounts.add("carol", PASSWORD)

    assert accounts.check(name, password) is None


def test_new_password_replaces_the_old_password(accounts: Accounts, directory: DataDirectory):
    first = accounts.make_first()["bob"]
    accounts.set_password("bob", PASSWORD)

    assert accounts.check("bob", first) is None
    assert accounts.check("bob", PASSWORD)
    assert "bob" not in read_passwords(directory)


def test_generated_password_replaces_its_line_in_passwords_txt(
    accounts: Accounts, directory: DataDirectory
):
    accounts.make_first()
    password = accounts.set_password("bob")

    assert read_passwords(directory)["bob"] == password
    assert set(read_passwords(directory)) == {"admin", "bob", "patty"}


def test_new_password_of_an_admin_preserves_the_admin_role(accounts: Accounts):
    accounts.add("root", PASSWORD, admin=True)
    accounts.set_password("root")

    assert accounts.all()["root"].admin


def test_removed_account_can_no_longer_log_in(accounts: Accounts, directory: DataDirectory):
    password = accounts.make_first()["bob"]
    accounts.remove("bob")

    assert accounts.check("bob", password) is None
    assert "bob" not in read_passwords(directory)


def test_removed_user_name_is_refused_without_the_same_person_flag(accounts: Accounts):
    accounts.add("carol", PASSWORD)
    accounts.remove("carol")
    with pytest.raises(
        Conflict, match="files, jobs and project memberships are still there"
    ) as refused:
        accounts.add("carol", "another person's")

    assert "--same-person" in str(refused.value)
    assert accounts.check("carol", "another person's") is None


def test_removed_user_name_is_added_again_for_the_same_person(accounts: Accounts):
    accounts.add("carol", PASSWORD, admin=True)
    accounts.remove("carol")
    accounts.record_completed("carol", accounts.pending_removals()["carol"])
    accounts.add("carol", PASSWORD, same_person=True)

    assert accounts.check("carol", PASSWORD)
    assert not accounts.all()["carol"].admin


REMOVAL_STEPS = {
    "removed": (["remove"], True),
    "removed and ended": (["remove", "end"], False),
    "added again before it was ended": (["remove", "add"], True),
    "added again after it was ended": (["remove", "end", "add"], False),
    "ended after it was added again": (["remove", "add", "end"], False),
    "removed again while the first is ended": (["remove", "add", "remove", "end first"], True),
}


@pytest.mark.usefixtures("quick_hashes")
@pytest.mark.parametrize(("steps", "is_pending"), REMOVAL_STEPS.values(), ids=REMOVAL_STEPS)
def test_open_logins_of_a_removed_account_are_pending_to_end_until_ended_once(
    directory: DataDirectory, steps: list[str], is_pending: bool
):
    Accounts(directory).add("carol", PASSWORD)
    removals: list[Removal] = []
    for step in steps:
        accounts = Accounts(directory)  # another process each time
        if step == "remove":
            accounts.remove("carol")
            removals.append(accounts.pending_removals()["carol"])
        elif step == "add":
            accounts.add("carol", PASSWORD, same_person=True)
        else:
            accounts.record_completed("carol", removals[0 if step == "end first" else -1])

    assert ("carol" in Accounts(directory).pending_removals()) == is_pending


def test_removed_first_accounts_are_not_added_again(accounts: Accounts):
    accounts.make_first()
    for name in [*accounts.all()]:
        accounts.remove(name)

    assert accounts.make_first() == {}


def test_account_list_reflects_a_change_by_a_different_process(
    accounts: Accounts, directory: DataDirectory
):
    accounts.make_first()
    assert "carol" not in accounts.all()
    Accounts(directory).add("carol", PASSWORD)

    assert accounts.check("carol", PASSWORD)


@pytest.mark.parametrize("name", ["", "Bob", "../x", "-x", "x" * 64, "ü", "a\n"])
def test_invalid_user_name_is_refused(accounts: Accounts, name: str):
    with pytest.raises(InvalidRequest, match="cannot be a user name"):
        accounts.add(name, PASSWORD)


@pytest.mark.parametrize("name", ["a", "ana@example.org", "j.doe", "x_1", "x" * 63])
def test_usual_user_name_is_accepted(accounts: Accounts, name: str):
    accounts.add(name, PASSWORD)

    assert name in accounts.all()


def test_short_password_is_refused(accounts: Accounts):
    with pytest.raises(InvalidRequest, match="of 9 characters is too short"):
        accounts.add("carol", "x" * 9)

    assert "carol" not in accounts.all()


def test_existing_user_name_is_refused_and_its_password_is_unchanged(accounts: Accounts):
    accounts.add("carol", PASSWORD)
    with pytest.raises(Conflict, match="a user carol already"):
        accounts.add("carol", "something else")

    assert accounts.check("carol", PASSWORD)


def test_unknown_user_name_is_refused_with_the_known_names(accounts: Accounts):
    accounts.make_first()
    for change in (accounts.set_password, accounts.remove):
        with pytest.raises(NotFound, match=r"no user carol\. There is: admin, bob, patty"):
            change("carol")


@pytest.mark.parametrize("text", ["", "[]", '{"accounts": []}', '{"accounts": {"a": 1}}'])
def test_damaged_accounts_file_is_named_in_the_error(
    accounts: Accounts, directory: DataDirectory, text: str
):
    directory.accounts.write_text(text)
    with pytest.raises(InvalidRequest, match=r"accounts\.json is damaged"):
        accounts.all()


def test_password_hash_is_slow_and_salted(directory: DataDirectory):
    accounts = Accounts(directory)
    accounts.add("one", PASSWORD)
    accounts.add("two", PASSWORD)
    stored = json.loads(directory.accounts.read_text())["accounts"]

    assert stored["one"]["hashed"].startswith("scrypt$16384$8$1$")
    assert stored["one"]["hashed"] != stored["two"]["hashed"]


@contextmanager
def limited_file_size(max_bytes: int) -> Iterator[None]:
    """Let the kernel refuse files that are longer, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_of(directory: DataDirectory) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.secrets.iterdir()}


@pytest.mark.parametrize("max_bytes", [0, 200], ids=["no room", "room for passwords.txt alone"])
@pytest.mark.parametrize(
    "change",
    [
        lambda accounts: accounts.set_password("bob"),
        lambda accounts: accounts.set_password("bob", PASSWORD),
        lambda accounts: accounts.add("carol"),
        lambda accounts: accounts.remove("bob"),
    ],
    ids=["generated", "chosen", "added", "removed"],
)
def test_account_change_on_a_full_disk_changes_nothing(
    accounts: Accounts,
    directory: DataDirectory,
    change: Callable[[Accounts], object],
    max_bytes: int,
):
    passwords = accounts.make_first()
    before = files_of(directory)

    with (
        limited_file_size(max_bytes),
        pytest.raises(Unavailable, match="could not be changed: File too large"),
    ):
        change(accounts)

    assert files_of(directory) == before
    assert all(accounts.check(name, password) for name, password in passwords.items())


@pytest.mark.parametrize("max_bytes", [0, 200], ids=["no room", "room for passwords.txt alone"])
def test_first_accounts_are_added_at_the_next_start_after_a_full_disk(
    accounts: Accounts, directory: DataDirectory, max_bytes: int
):
    with limited_file_size(max_bytes), pytest.raises(Unavailable):
        accounts.make_first()

    passwords = accounts.make_first()

    assert read_passwords(directory) == passwords
    assert accounts.check("admin", passwords["admin"])
