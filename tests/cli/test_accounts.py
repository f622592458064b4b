"""`runai user` on a real data directory: the login accepts its changes."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A data directory with the first accounts: the admin, bob and patty."""
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 16)  # a fast hash
    data_dir = DataDirectory(tmp_path / "platform")
    data_dir.prepare(system_users=False)
    Accounts(data_dir).make_first()
    return data_dir


@pytest.fixture
def runai_user(directory, runai):
    def run(*arguments, **options):
        return runai("user", "--data-dir", str(directory.root), *arguments, **options)

    return run


def test_user_list_marks_admins(runai_user):
    assert runai_user("list").stdout.splitlines() == [
        "NAME   ADMIN",
        "admin  yes",
        "bob    -",
        "patty  -",
    ]


def test_user_add_prints_a_generated_password_that_logs_in(runai_user, directory):
    result = runai_user("add", "ana")

    password = result.stdout.splitlines()[1].removeprefix("password: ")
    assert Accounts(directory).check("ana", password) is not None
    assert "runai project set PROJECT --add-member ana" in result.stderr


def test_user_add_with_admin_flag_makes_an_admin(runai_user):
    runai_user("add", "root2", "--admin")

    assert {"name": "root2", "admin": True} in json.loads(runai_user("list", "-o", "json").stdout)


@pytest.mark.parametrize(
    ("options", "prompt_count"),
    [(["--password-stdin"], 1), ([], 2)],
    ids=["from standard input", "prompted twice"],
)
def test_passwd_command_never_prints_the_chosen_password(
    runai_user, directory, options, prompt_count
):
    result = runai_user("passwd", "bob", *options, stdin="correct horse battery\n" * prompt_count)

    assert result.exit_code == 0
    assert Accounts(directory).check("bob", "correct horse battery") is not None
    assert "correct horse" not in result.output


def test_user_remove_prints_which_logins_servers_and_jobs_end(runai_user, directory):
    result = runai_user("remove", "bob")

    assert "bob" not in Accounts(directory).all()
    assert result.stdout == "user bob removed: no login from now on\n"
    for phrase in ("Within a minute", "at its next start", "suspends their jobs", "--same-person"):
        assert phrase in result.stderr


def test_removed_user_name_is_added_again_only_with_the_same_person_flag(runai_user, directory):
    runai_user("remove", "bob")
    refused = runai_user("add", "bob")
    added = runai_user("add", "bob", "--same-person")

    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: There was a user bob before: that person's files,")
    assert "--same-person" in refused.stderr
    assert added.exit_code == 0
    assert "has yet to end what bob had open before" in added.stderr
    assert "bob" in Accounts(directory).all()


def test_user_add_refuses_an_existing_name_with_a_hint(runai_user):
    result = runai_user("add", "bob")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is a user bob already.\nHint: ")


def test_user_list_refuses_a_data_directory_without_accounts(runai, tmp_path):
    result = runai("user", "--data-dir", str(tmp_path), "list")

    assert result.exit_code == 1
    assert f"There are no accounts in {tmp_path}." in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["user", "list"],
        ["user", "add", "ana"],
        ["user", "passwd", "bob", "--generate"],
        ["user", "remove", "bob"],
        ["user", "same-person", "bob"],
        ["user", "forget", "bob"],
        ["backup"],
        ["restore", "a-backup"],
    ],
    ids=" ".join,
)
def test_data_directory_of_a_different_account_is_refused_and_unchanged(
    directory, runai, monkeypatch, arguments
):
    owner = directory.secrets.stat().st_uid
    before = {path: path.lstat().st_mtime_ns for path in directory.root.rglob("*")}
    # Root is such an account: it may write there, but its files would lock the platform out.
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    command, *rest = arguments

    result = runai(command, "--data-dir", str(directory.root), *rest)

    assert result.exit_code == 1
    name = pwd.getpwuid(owner).pw_name
    assert f"The data directory {directory.root} belongs to {name}." in result.stderr
    assert f"sudo -u ACCOUNT runai {command}" in result.stderr
    assert {path: path.lstat().st_mtime_ns for path in directory.root.rglob("*")} == before


def test_backup_to_a_separate_folder_succeeds_for_a_different_account(
    directory, runai, monkeypatch, tmp_path
):
    SqliteStore(directory.root / "cluster.sqlite").close()
    monkeypatch.setattr(os, "geteuid", lambda: directory.secrets.stat().st_uid + 1)

    result = runai("backup", str(tmp_path / "mine"), "--data-dir", str(directory.root))

    assert result.exit_code == 0, result.stderr
