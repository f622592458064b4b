"""States of Unix accounts by PAM: one that has expired starts nothing, what runs goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from labs import local_lab, plan, start
from runai.hub_service.clusters.local.processes import start_accounts
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.account_states import (
    STATES,
    AccountStates,
    hindrances,
)
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.wire.errors import Forbidden, Unavailable
from unix_accounts import accounts

DEBIAN_MESSAGE = "Your account has expired; please contact your system administrator."
"""Message of pam_unix; Debian's common-account turns its code into PAM_AUTH_ERR by pam_deny."""
SUCCESS, SYSTEM_ERR, PERM_DENIED, AUTH_ERR, AUTHINFO_UNAVAIL = 0, 4, 6, 7, 9
NEW_AUTHTOK_REQD, ACCT_EXPIRED, AUTHTOK_EXPIRED = 12, 13, 27
"""Result codes of PAM."""
EXPIRED = "The account ana has expired."
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make or be accounts")


@pytest.fixture
def unix():
    with accounts() as unix:
        yield unix


@pytest.mark.parametrize(
    ("state", "error", "sentence"),
    [
        pytest.param((SUCCESS, "Success"), None, "", id="valid"),
        pytest.param((NEW_AUTHTOK_REQD, "required"), None, "", id="password to be changed"),
        pytest.param((ACCT_EXPIRED, "x"), Forbidden, EXPIRED, id="expired"),
        pytest.param((AUTH_ERR, DEBIAN_MESSAGE), Forbidden, EXPIRED, id="expired on Debian"),
        pytest.param((AUTHTOK_EXPIRED, DEBIAN_MESSAGE), Forbidden, EXPIRED, id="inactive"),
        pytest.param(
            (PERM_DENIED, "Permission denied"),
            Forbidden,
            "The account ana is not admitted by PAM (service login: Permission denied).",
            id="denied",
        ),
        pytest.param(
            (AUTH_ERR, "Maintenance", "/etc/nologin"),
            Unavailable,
            "Nobody may log in to this machine now (/etc/nologin).",
            id="nologin",
        ),
        pytest.param(
            (AUTHINFO_UNAVAIL, "Cannot retrieve\nauthentication info."),
            Unavailable,
            "PAM (service login) does not say whether ana is admitted:"
            r" Cannot retrieve\nauthentication info.",
            id="another error",
        ),
    ],
)
async def test_pam_result_code_decides_whether_an_account_is_admitted(unix, state, error, sentence):
    states = unix.states()
    unix.state("ana", *state)

    if error is None:
        await states.check("ana")
    else:
        with pytest.raises(error) as refused:
            await states.check("ana")
        assert refused.value.message == sentence
        assert refused.value.code == ("account_expired" if error is Forbidden else "account_away")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        # No timeout is too short for a program that never answers.
        pytest.param(("sleep", "600"), {"within_s": 0.0}, id="silence"),
        pytest.param(("true",), {}, id="crash"),
    ],
)
async def test_account_state_check_without_a_pam_answer_raises_unavailable(command, options):
    with pytest.raises(Unavailable, match="whether ana is admitted: no answer"):
        await AccountStates("login", command=command, **options).check("ana")


async def test_account_state_is_cached_for_a_minute_but_an_error_is_not(unix):
    now_s = 0.0
    states = unix.states(clock=lambda: now_s)
    unix.state("ana", SYSTEM_ERR)
    with pytest.raises(Unavailable):
        await states.check("ana")
    unix.state("ana", SUCCESS)
    await states.check("ana")
    unix.state("ana", ACCT_EXPIRED)
    now_s = 59.0
    await states.check("ana")

    now_s = 60.0
    for _ in range(2):
        with pytest.raises(Forbidden):
            await states.check("ana")


async def test_uid_comparison_of_an_expired_account_is_not_refused(unix, tmp_path):
    directory = unix.directory(tmp_path, states=unix.states())
    unix.state("ana", ACCT_EXPIRED)

    await directory.compare("ana")
    with pytest.raises(Forbidden):
        await directory.account("ana")


@as_root
class TestJobs:
    """Jobs of an account that has expired wait; those that run go on."""

    @pytest.fixture
    async def lab(self, unix, tmp_path, monkeypatch):
        monkeypatch.setattr(start_accounts, "LOOK_UP_EVERY_S", 0.01)
        states = unix.states(clock=count(step=100).__next__)  # no state is cached any longer
        directory = unix.directory(tmp_path / "data", states=states)
        async with local_lab(tmp_path, accounts=directory) as lab:
            yield lab

    async def test_jobs_of_an_expired_account_wait_without_a_gpu_until_extension(self, lab, unix):
        [running_job] = await lab.cluster.submit([lab.job("runs", command=("sleep", "1000"))])
        await lab.cluster.apply(plan(start(running_job.id, 0)))
        await lab.until(running_job.id, "running")
        [waiting_job] = await lab.cluster.submit([lab.job("waits", command=("true",))])
        unix.state("ana", ACCT_EXPIRED)
        await lab.cluster.apply(plan(start(waiting_job.id, 1)))

        record = await lab.until(waiting_job.id, "retrying")
        assert record.reason.code == "account_expired"
        assert record.reason.text == "The account ana has expired"
        assert (record.allocated, record.failures) == (0, 0)
        assert (await lab.cluster.workload(running_job.id)).state == "running"
        with pytest.raises(Forbidden, match=r"The account ana has expired\."):
            await lab.cluster.submit([lab.job("new")])

        unix.state("ana", SUCCESS)
        await lab.until(waiting_job.id, "queued")
        await lab.cluster.apply(plan(start(waiting_job.id, 1)))
        await lab.until(waiting_job.id, "succeeded")


@pytest.fixture
def account() -> Iterator[str]:
    """Make an account of this machine."""
    account = f"u{uuid4().hex[:12]}"
    subprocess.run(["useradd", "-m", account], check=True)
    yield account
    subprocess.run(["userdel", "-r", account], check=True, stderr=subprocess.DEVNULL)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@as_root
@pytest.mark.skipif(not Path("/etc/pam.d/login").exists(), reason="needs PAM's service login")
class TestRealAccount:
    async def test_account_is_refused_from_its_expiry_until_its_extension(self, account, tmp_path):
        states = AccountStates(clock=count(step=100).__next__)
        directory = AccountDirectory(KnownAccounts(tmp_path), states=states)
        (tmp_path / "secrets").mkdir()
        assert (await directory.account(account)).user == account

        run("usermod", "-L", "-e", "1", account)
        with pytest.raises(Forbidden, match=rf"The account {account} has expired\."):
            await directory.account(account)
        refused_accounts = await hindrances("login", [account, "no-such-user"])
        assert [refused.message for refused in refused_accounts] == [
            f"The account {account} has expired."
        ]

        run("usermod", "-U", "-e", "", account)
        assert (await directory.account(account)).user == account

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(["usermod", "-L"], id="locked"),
            pytest.param(["chage", "-d", "0"], id="password to be changed"),
        ],
    )
    async def test_account_that_is_locked_but_not_expired_is_admitted(self, account, change):
        run(*change, account)

        await AccountStates().check(account)

    async def test_missing_pam_service_file_skips_the_expiry_check(self, account):
        run("usermod", "-e", "1", account)

        await AccountStates("no-such-service").check(account)


def test_account_state_program_runs_without_site_packages():
    assert STATES[:3] == (sys.executable, "-I", "-S")
