"""`runai user same-person` and `forget` on the data directory of `runai up --system-users`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from uuid import uuid4

import pytest

from runai.embedded.data_directory import DataDirectory
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.known_accounts import (
    KNOWN_ACCOUNTS,
    KnownAccount,
    KnownAccounts,
)
from runai.hub_service.wire.errors import Forbidden
from unix_accounts import UIDS, accounts

ANA_UID = UIDS["ana"]
NEW_UID = 2003


@pytest.fixture
def unix():
    with accounts() as unix:
        yield unix


@pytest.fixture
def directory(tmp_path):
    data_dir = DataDirectory(tmp_path / "platform")
    data_dir.prepare(system_users=True)
    return data_dir


@pytest.fixture
def known_accounts(directory):
    known_accounts = KnownAccounts(directory.root)
    known_accounts.register(KnownAccount("ana", ANA_UID, ANA_UID, "/home/ana", local=True))
    return known_accounts


@pytest.fixture
def runai_user(directory, unix, runai, monkeypatch):
    def account_directory(_known):
        return unix.directory(directory.root)

    monkeypatch.setattr(
        "runai.hub_service.cli.commands.accounts.AccountDirectory", account_directory
    )

    def run(*arguments):
        return runai("user", "--data-dir", str(directory.root), *arguments)

    return run


def test_user_same_person_takes_the_new_uid_and_stores_the_former_uid(
    runai_user, unix, known_accounts
):
    unix.answer("ana", unix.entry("ana", uid=NEW_UID, home="/home/new"))

    result = runai_user("same-person", "ana")

    assert result.stdout == f"ana has uid {NEW_UID} now, was {ANA_UID}: the same person\n"
    assert f"chown -R -h --from={ANA_UID} {NEW_UID} /home/new" in result.stderr
    account = known_accounts.get("ana")
    assert (account.uid, account.home, account.former_uids) == (NEW_UID, "/home/new", (ANA_UID,))


REFUSALS = {
    "unchanged uid": ({}, f"ana has uid {ANA_UID}, as before: nothing to do."),
    "removed account": ({"local": False}, "The account ana is gone since"),
    "no answer of the account directory": (
        {"local": None},
        "The account directory does not answer for ana since",
    ),
}


@pytest.mark.parametrize(("answer", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_user_same_person_refusal_leaves_the_known_uid_unchanged(
    runai_user, unix, known_accounts, answer, sentence
):
    unix.answer("ana", answer or unix.entry("ana"))

    result = runai_user("same-person", "ana")

    assert result.exit_code == 1
    assert sentence in result.stderr
    assert known_accounts.get("ana").uid == ANA_UID


def test_user_same_person_refuses_an_unknown_name(runai_user, known_accounts):
    result = runai_user("same-person", "pat")

    assert result.exit_code == 1
    assert "No account pat is known here" in result.stderr


def test_user_same_person_refuses_a_name_that_is_being_forgotten(runai_user, unix, known_accounts):
    unix.answer("ana", unix.entry("ana", uid=NEW_UID))
    runai_user("forget", "ana")
    result = runai_user("same-person", "ana")

    assert result.exit_code == 1
    assert "ana is being forgotten" in result.stderr


@pytest.mark.parametrize("name", ["ana", "pat"], ids=["known account", "unknown account"])
def test_forget_records_the_request_and_prints_what_it_ends(runai_user, known_accounts, name):
    result = runai_user("forget", name)

    assert known_accounts.being_forgotten() == [name]
    assert known_accounts.get("ana") is not None
    assert result.stdout == f"user {name} is being forgotten: nothing starts under this name\n"
    for phrase in ("tokens", "at its next start", "Nothing in a home is touched", "hub.log"):
        assert phrase in result.stderr
    assert (f"No account {name} is known here" in result.stderr) is (name == "pat")


@pytest.mark.parametrize("command", ["same-person", "forget"])
def test_user_same_person_and_forget_need_system_users(runai, tmp_path, command):
    data_dir = DataDirectory(tmp_path / "plain")
    data_dir.prepare(system_users=False)

    result = runai("user", "--data-dir", str(data_dir.root), command, "ana")

    assert result.exit_code == 1
    assert "is no data directory of `runai up --system-users`" in result.stderr
    assert not (data_dir.root / KNOWN_ACCOUNTS).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make an account")
def test_usermod_uid_change_is_the_same_person_and_a_recreated_account_is_not(directory, runai):
    name, known_accounts = f"u{uuid4().hex[:12]}", KnownAccounts(directory.root)

    async def current_uid():
        return (await AccountDirectory(known_accounts).account(name)).uid

    def run(*command):
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    run("useradd", "-M", "-d", "/tmp", "-U", name)
    try:
        first_uid = asyncio.run(current_uid())
        run("usermod", "-u", str(first_uid + 1000), name)
        same_person = runai("user", "--data-dir", str(directory.root), "same-person", name)
        changed_uid = asyncio.run(current_uid())
        run("userdel", name)
        run("useradd", "-M", "-d", "/tmp", "-U", "-u", str(first_uid + 2000), name)
        with pytest.raises(Forbidden, match="an admin says whether this is the same person"):
            asyncio.run(current_uid())
        known_accounts.forget(name)  # as the hub does
        recreated_uid = asyncio.run(current_uid())
    finally:
        run("userdel", name)

    assert same_person.exit_code == 0
    assert changed_uid == first_uid + 1000
    assert recreated_uid == first_uid + 2000
    assert (account := known_accounts.get(name)) is not None
    assert account.former_uids == ()
