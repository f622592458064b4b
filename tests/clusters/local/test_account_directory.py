"""Lookups of Unix accounts: who a name is known to be, and what an outage may not change."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from uuid import uuid4

import pytest

from runai.hub_service.processes.accounts.account_directory import (
    LOOKUP,
    AccountAway,
    AccountDirectory,
)
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.hub_service.processes.accounts.lookup_program import home_fault
from runai.hub_service.processes.accounts.programs import query
from runai.hub_service.wire.errors import Forbidden, NotFound, Unavailable
from unix_accounts import UIDS, accounts

ANA = UIDS["ana"]
NEW_UID = 2003


class Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def unix():
    with accounts() as unix:
        yield unix


@pytest.fixture
def directory(unix, clock, tmp_path):
    return unix.directory(tmp_path, clock=clock)


async def test_unix_account_is_remembered_after_its_first_lookup(directory, unix):
    found = await directory.account("ana")

    assert found == unix.account("ana")
    assert directory.known_accounts.get("ana").account() == found
    assert [known.name for known in directory.known_accounts.all()] == ["ana"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        pytest.param({"local": False}, "User ana has no account on this machine.", id="none"),
        pytest.param({"local": None}, "User ana has no account on this machine.", id="unreadable"),
        pytest.param({"uid": 0, "home": "/"}, "User ana is root", id="root"),
    ],
)
async def test_unknown_user_name_without_a_unix_account_is_refused(
    directory, unix, answer, sentence
):
    unix.answer("ana", {**unix.entry("ana"), **answer} if "uid" in answer else answer)

    with pytest.raises(NotFound, match=sentence) as refused:
        await directory.account("ana")

    assert refused.value.code == "no_account"
    assert directory.known_accounts.get("ana") is None


@pytest.mark.parametrize(
    ("local", "answer", "sentence", "is_removed"),
    [
        pytest.param(
            False,
            {"local": False},
            "The account directory does not answer for ana since",
            False,
            id="account of the directory",
        ),
        pytest.param(
            True, {"local": None}, "The account directory does not answer", False, id="unreadable"
        ),
        pytest.param(
            True, "silence", "The account directory does not answer", False, id="no answer"
        ),
        pytest.param(True, {"local": False}, "The account ana is gone since", True, id="local"),
    ],
)
async def test_known_account_without_a_directory_answer_is_temporarily_unavailable(
    unix, tmp_path, local, answer, sentence, is_removed
):
    # No timeout is too short for a lookup that never answers.
    directory = unix.directory(tmp_path, **({"within_s": 0.0} if answer == "silence" else {}))
    directory.known_accounts.register(KnownAccount("ana", ANA, ANA, "/home/ana", local=local))
    unix.answer("ana", answer)

    with pytest.raises(AccountAway, match=sentence) as away:
        await directory.account("ana")

    assert (away.value.missing_since is not None) == is_removed
    assert away.value.code == "account_away"
    assert directory.known_accounts.get("ana").uid == ANA


async def test_account_directory_outage_message_names_the_time_of_its_beginning(
    directory, unix, clock
):
    await directory.account("ana")
    unix.answer("ana", {"local": None})
    outage_began, sentences = time.strftime("%H:%M", time.localtime(clock.at)), set()
    for _ in range(2):
        with pytest.raises(AccountAway) as away:
            await directory.account("ana")
        sentences.add(away.value.message)
        clock.at += 3600
    assert sentences == {f"The account directory does not answer for ana since {outage_began}."}


@pytest.mark.parametrize(
    ("changed", "groups"),
    [
        pytest.param({"groups": [ANA, 7]}, (ANA, 7), id="other group"),
        pytest.param({"groups": [ANA]}, (ANA,), id="left a group that answers"),
        pytest.param({"groups": [ANA], "silent_groups": [8]}, None, id="group does not answer"),
    ],
)
async def test_shorter_list_of_account_groups_is_accepted_if_the_missing_group_resolves(
    directory, unix, changed, groups
):
    unix.answer("ana", unix.entry("ana", groups=[ANA, 8], directory_groups=[8]))
    await directory.account("ana")
    unix.answer("ana", unix.entry("ana", **changed))

    if groups is None:
        with pytest.raises(AccountAway, match="does not answer for the groups of ana"):
            await directory.account("ana")
    else:
        assert (await directory.account("ana")).groups == groups


@pytest.mark.parametrize(
    ("home_line", "reason"),
    [
        pytest.param({"home_fault": "Stale file handle"}, "Stale file handle", id="stale"),
        pytest.param({}, "it does not answer", id="no answer about the home"),
    ],
)
async def test_unreachable_home_makes_a_known_account_temporarily_unavailable(
    directory, unix, home_line, reason
):
    entry = unix.entry("ana")
    del entry["home_fault"]
    unix.answer("ana", entry | home_line)

    with pytest.raises(AccountAway, match=f"ana, the home of ana, .*: {reason}") as away:
        await directory.account("ana")

    assert away.value.code == "home_away"
    assert directory.known_accounts.get("ana").uid == ANA


@pytest.mark.parametrize(
    ("make_home", "fault"),
    [
        pytest.param(lambda path: path.mkdir(), "", id="folder"),
        pytest.param(lambda _: None, "No such file or directory", id="missing"),
        pytest.param(lambda path: path.symlink_to(path), "Too many levels", id="loop"),
    ],
)
def test_account_lookup_program_reports_an_unusable_home(make_home, fault, tmp_path):
    make_home(tmp_path / "ana")

    assert home_fault(str(tmp_path / "ana")).startswith(fault)
    assert bool(home_fault(str(tmp_path / "ana"))) == bool(fault)


class TestChangedUid:
    """A name is a person only with its uid."""

    @pytest.fixture(autouse=True)
    async def changed_uid(self, directory, unix):
        await directory.account("ana")
        unix.answer("ana", unix.entry("ana", uid=NEW_UID, home="/home/new"))

    async def test_changed_uid_of_an_account_is_refused_until_an_admin_decides(self, directory):
        with pytest.raises(Forbidden) as refused:
            await directory.account("ana")

        assert refused.value.message == (
            f"ana has uid {NEW_UID} now, it was {ANA}:"
            " an admin says whether this is the same person."
        )
        assert directory.known_accounts.get("ana").uid == ANA

    async def test_changed_uid_confirmed_by_an_admin_is_known_beside_the_former_uid(
        self, directory
    ):
        directory.known_accounts.take_uid("ana", NEW_UID)

        assert (await directory.account("ana")).uid == NEW_UID
        known = directory.known_accounts.get("ana")
        assert [uid for uid in (ANA, NEW_UID, 2004) if known.is_of(uid)] == [ANA, NEW_UID]

    async def test_changed_uid_of_a_forgotten_account_is_a_new_person(self, directory):
        directory.known_accounts.forget("ana")

        assert (await directory.account("ana")).uid == NEW_UID
        assert not directory.known_accounts.get("ana").is_of(ANA)

    async def test_restored_former_uid_of_an_account_is_accepted_without_an_admin(
        self, directory, unix
    ):
        unix.answer("ana", unix.entry("ana"))

        assert (await directory.account("ana")).uid == ANA


NEW_UID_ENTRY, NO_ENTRY = {"uid": NEW_UID}, {"local": False}
# The changed entry, the result of a lookup, the admin's command, and the result after it.
CHANGES = {
    "removed and made again": (NEW_UID_ENTRY, "other_person", "forget", NEW_UID),
    "removed and made again with the same uid": ({}, ANA, "nothing", ANA),
    "uid changed": (NEW_UID_ENTRY, "other_person", "same person", NEW_UID),
    "renamed": (NO_ENTRY, "account_away", "forget", "no_account"),
    "deleted with userdel alone": (NO_ENTRY, "account_away", "nothing", "account_away"),
    "deleted in the hub alone": ({}, ANA, "nothing", ANA),
    "forgotten but still in use": ({}, ANA, "ask to forget", "being_forgotten"),
}


@pytest.mark.parametrize(("entry", "before", "command", "after"), CHANGES.values(), ids=CHANGES)
async def test_account_lookup_result_follows_the_admins_command_for_a_changed_account(
    directory, unix, entry, before, command, after
):
    async def lookup_result():
        try:
            return (await directory.account("ana")).uid
        except (Forbidden, NotFound, Unavailable) as refused:
            return refused.code

    await directory.account("ana")
    unix.answer("ana", entry if entry is NO_ENTRY else unix.entry("ana", **entry))
    first = await lookup_result()
    if command == "same person":
        directory.known_accounts.take_uid("ana", NEW_UID)
    elif command != "nothing":
        directory.known_accounts.request_forget("ana")
    if command == "forget":  # as the hub does when all has ended
        directory.known_accounts.forget("ana")

    assert first == before
    assert await lookup_result() == after


async def test_renamed_account_is_a_new_name_beside_the_former_one(directory, unix):
    await directory.account("ana")
    unix.answer("ana", NO_ENTRY)
    unix.answer("pat", unix.entry("pat", uid=ANA))

    assert (await directory.account("pat")).uid == ANA
    assert {known.name: known.uid for known in directory.known_accounts.all()} == {
        "ana": ANA,
        "pat": ANA,
    }


class TestComparison:
    async def test_known_account_is_compared_with_the_directory_once_a_minute(
        self, directory, unix, clock
    ):
        await directory.account("ana")
        await directory.compare("ana")
        unix.answer("ana", unix.entry("ana", uid=NEW_UID))
        clock.at += 59
        await directory.compare("ana")

        clock.at += 1
        for _ in range(2):
            with pytest.raises(Forbidden, match=f"uid {NEW_UID} now"):
                await directory.compare("ana")

    @pytest.mark.parametrize("known", [True, False])
    async def test_account_comparison_without_a_directory_answer_raises_no_error(
        self, directory, unix, known
    ):
        if known:
            await directory.account("ana")
        unix.answer("ana", {"local": False})

        await directory.compare("ana")


async def test_concurrent_account_lookups_share_one_process_despite_a_cancellation(unix, tmp_path):
    lookup_log = tmp_path / "lookups"
    count = f"import sys, os; open({str(lookup_log)!r}, 'a').write('x')\n"
    directory = unix.directory(tmp_path)
    *python, program, answers = directory._command
    directory._command = (*python, count + program, answers)

    first, *waiting_lookups = [asyncio.create_task(directory.account("ana")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(*waiting_lookups)

    assert {account.uid for account in found} == {ANA}
    assert lookup_log.read_text() == "x"


async def test_unwritable_account_files_make_account_lookups_fail_with_the_reason(unix, tmp_path):
    (tmp_path / "secrets").touch()  # instead of a folder

    with pytest.raises(Unavailable, match="cannot be read or written: Not a directory"):
        await unix.directory(tmp_path).account("ana")


def test_second_process_that_registers_an_account_uses_the_first_uid(tmp_path):
    ours, theirs = KnownAccounts(tmp_path), KnownAccounts(tmp_path)
    first = ours.register(KnownAccount("ana", 1, 1, "/home/ana"))

    assert theirs.register(KnownAccount("ana", 2, 2, "/home/ana")) == first
    assert theirs.register(replace(first, home="/home/moved")).home == "/home/moved"
    assert (found := ours.get("ana")) is not None
    assert found.home == "/home/moved"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make an account")
def test_real_account_is_found_with_its_groups(tmp_path):
    name = f"u{uuid4().hex[:12]}"
    subprocess.run(
        ["useradd", "-M", "-d", f"{tmp_path}", "-U", "-G", "users", "-s", "/bin/dash", name],
        check=True,
    )
    try:
        found = asyncio.run(AccountDirectory(KnownAccounts(tmp_path)).account(name))
        known = KnownAccounts(tmp_path).get(name)
    finally:
        subprocess.run(["userdel", name], check=True)

    assert (found.shell, found.home) == ("/bin/dash", tmp_path)
    assert found.gid in found.groups
    assert len(found.groups) == 2  # its own and `users`
    assert known is not None
    assert (known.local, known.directory_groups) == (True, ())


async def test_account_lookup_program_gets_only_the_environment_its_python_needs(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "secret")
    script = "import json, os; print(json.dumps(dict(os.environ)))"

    environment = await query((sys.executable, "-I", "-S", "-c", script), within_s=60)

    assert environment is not None
    assert environment["LD_LIBRARY_PATH"] == "/opt/python/lib"
    assert "RUNAI_HUB_TOKEN" not in environment


def test_account_lookup_program_runs_without_site_packages():
    assert LOOKUP[:3] == (sys.executable, "-I", "-S")
