"""`runai user same-person` and `forget` on the data directory of `runai up --system-users`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from uuid import uuid4

import pytest

from runai.embedded.directory import DataDirectory
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.known_accounts import (
    KNOWN_ACCOUNTS,
    KnownAccount,
    KnownAccounts,
)
from runai.hub_service.wire.errors import Forbidden
from unix_accounts import UIDS, accounts

ANA = UIDS["ana"]


@pytest.fixture
def unix():
    with accounts() as unix:
        yield unix


@pytest.fixture
def directory(tmp_path):
    made = DataDirectory(tmp_path / "platform")
    made.prepare(system_users=True)
    return made


@pytest.fixture
def known(directory):
    known = KnownAccounts(directory.root)
    known.register(KnownAccount("ana", ANA, ANA, "/home/ana", local=True))
    return known


@pytest.fixture
def user(directory, unix, runai, monkeypatch):
    def asked(_known):
        return unix.directory(directory.root)

    monkeypatch.setattr("runai.hub_service.cli.commands.accounts.AccountDirectory", asked)

    def run(*arguments):
        return runai("user", "--data-dir", str(directory.root), *arguments)

    return run


def test_new_uid_is_taken_and_the_former_one_is_known_beside_it(user, unix, known):
    unix.answer("ana", unix.entry("ana", uid=2003, home="/home/new"))

    result = user("same-person", "ana")

    assert result.stdout == f"ana has uid 2003 now, was {ANA}: the same person\n"
    assert f"chown -R -h --from={ANA} 2003 /home/new" in result.stderr
    now = known.get("ana")
    assert (now.uid, now.home, now.former_uids) == (2003, "/home/new", (ANA,))


REFUSALS = {
    "the uid is the known one": ({}, f"ana has uid {ANA}, as before: nothing to do."),
    "the account is gone": ({"local": False}, "The account ana is gone since"),
    "the account directory does not answer": (
        {"local": None},
        "The account directory does not answer for ana since",
    ),
}


@pytest.mark.parametrize(("answer", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_nothing_changes_if(user, unix, known, answer, sentence):
    unix.answer("ana", answer or unix.entry("ana"))

    result = user("same-person", "ana")

    assert result.exit_code == 1
    assert sentence in result.stderr
    assert known.get("ana").uid == ANA


def test_name_that_is_not_known_has_no_other_uid(user, known):
    result = user("same-person", "pat")

    assert result.exit_code == 1
    assert "No account pat is known here" in result.stderr


def test_person_that_is_being_forgotten_takes_no_uid(user, unix, known):
    unix.answer("ana", unix.entry("ana", uid=2003))
    user("forget", "ana")
    result = user("same-person", "ana")

    assert result.exit_code == 1
    assert "ana is being forgotten" in result.stderr


@pytest.mark.parametrize("name", ["ana", "pat"], ids=["known", "not known"])
def test_forgetting_is_asked_of_the_hub_and_says_what_it_ends(user, known, name):
    result = user("forget", name)

    assert known.being_forgotten() == [name]
    assert known.get("ana") is not None
    assert result.stdout == f"user {name} is being forgotten: nothing starts under this name\n"
    for said in ("tokens", "at its next start", "Nothing in a home is touched", "hub.log"):
        assert said in result.stderr
    assert (f"No account {name} is known here" in result.stderr) is (name == "pat")


@pytest.mark.parametrize("command", ["same-person", "forget"])
def test_platform_with_accounts_of_its_own_compares_nothing(runai, tmp_path, command):
    made = DataDirectory(tmp_path / "plain")
    made.prepare(system_users=False)

    result = runai("user", "--data-dir", str(made.root), command, "ana")

    assert result.exit_code == 1
    assert "is no data directory of `runai up --system-users`" in result.stderr
    assert not (made.root / KNOWN_ACCOUNTS).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make an account")
def test_real_account_with_another_uid_is_the_same_person_and_a_new_one_is_not(directory, runai):
    name, known = f"u{uuid4().hex[:12]}", KnownAccounts(directory.root)

    async def meet():
        return (await AccountDirectory(known).account(name)).uid

    def run(*command):
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    run("useradd", "-M", "-d", "/tmp", "-U", name)
    try:
        first = asyncio.run(meet())
        run("usermod", "-u", str(first + 1000), name)
        same = runai("user", "--data-dir", str(directory.root), "same-person", name)
        second = asyncio.run(meet())
        run("userdel", name)
        run("useradd", "-M", "-d", "/tmp", "-U", "-u", str(first + 2000), name)
        with pytest.raises(Forbidden, match="an admin says whether this is the same person"):
            asyncio.run(meet())
        known.forget(name)  # as the hub does
        third = asyncio.run(meet())
    finally:
        run("userdel", name)

    assert same.exit_code == 0
    assert (second, third) == (first + 1000, first + 2000)
    assert (new := known.get(name)) is not None
    assert new.former_uids == ()
