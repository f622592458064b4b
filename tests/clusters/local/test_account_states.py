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
"""What pam_unix tells; common-account makes pam_deny's PAM_AUTH_ERR of its code."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make or be accounts")


@pytest.fixture
def unix():
    with accounts() as unix:
        yield unix


@pytest.mark.parametrize(
    ("state", "error", "sentence"),
    [
        pytest.param((0, "Success"), None, "", id="well"),
        pytest.param((12, "required"), None, "", id="password to be changed"),
        pytest.param((13, "x"), Forbidden, "The account ana has expired.", id="expired"),
        pytest.param((7, DEBIAN_MESSAGE), Forbidden, "The account ana has expired.", id="Debian"),
        pytest.param(
            (27, DEBIAN_MESSAGE), Forbidden, "The account ana has expired.", id="inactive"
        ),
        pytest.param(
            (6, "Permission denied"),
            Forbidden,
            "The account ana is not admitted by PAM (service login: Permission denied).",
            id="denied",
        ),
        pytest.param(
            (7, "Maintenance", "/etc/nologin"),
            Unavailable,
            "Nobody may log in to this machine now (/etc/nologin).",
            id="nologin",
        ),
        pytest.param(
            (9, "Cannot retrieve\nauthentication info."),
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
        # A silent one is never heard, however long we listen.
        pytest.param(("sleep", "600"), {"within_s": 0.0}, id="silence"),
        pytest.param(("true",), {}, id="crash"),
    ],
)
async def test_account_state_check_without_a_pam_answer_raises_unavailable(command, options):
    with pytest.raises(Unavailable, match="whether ana is admitted: no answer"):
        await AccountStates("login", command=command, **options).check("ana")


async def test_account_state_is_cached_for_a_minute_but_an_error_is_not(unix):
    at = 0.0
    states = unix.states(clock=lambda: at)
    unix.state("ana", 4)
    with pytest.raises(Unavailable):
        await states.check("ana")
    unix.state("ana", 0)
    await states.check("ana")
    unix.state("ana", 13)
    at = 59.0
    await states.check("ana")

    at = 60.0
    for _ in range(2):
        with pytest.raises(Forbidden):
            await states.check("ana")


async def test_uid_comparison_of_an_expired_account_is_not_refused(unix, tmp_path):
    directory = unix.directory(tmp_path, states=unix.states())
    unix.state("ana", 13)

    await directory.compare("ana")
    with pytest.raises(Forbidden):
        await directory.account("ana")


@as_root
class TestJobs:
    """Jobs of an account that has expired wait; those that run go on."""

    @pytest.fixture
    async def lab(self, unix, tmp_path, monkeypatch):
        monkeypatch.setattr(start_accounts, "LOOK_UP_EVERY_S", 0.01)
        states = unix.states(clock=count(step=100).__next__)  # each question is a minute later
        directory = unix.directory(tmp_path / "data", states=states)
        async with local_lab(tmp_path, accounts=directory) as lab:
            yield lab

    async def test_jobs_of_an_expired_account_wait_without_a_gpu_until_extension(self, lab, unix):
        [runs] = await lab.cluster.submit([lab.job("runs", command=("sleep", "1000"))])
        await lab.cluster.apply(plan(start(runs.id, 0)))
        await lab.until(runs.id, "running")
        [waits] = await lab.cluster.submit([lab.job("waits", command=("true",))])
        unix.state("ana", 13)
        await lab.cluster.apply(plan(start(waits.id, 1)))

        record = await lab.until(waits.id, "retrying")
        assert (record.reason.code, record.reason.text) == (
            "account_expired",
            "The account ana has expired",
        )
        assert (record.allocated, record.failures) == (0, 0)
        assert (await lab.cluster.workload(runs.id)).state == "running"
        with pytest.raises(Forbidden, match=r"The account ana has expired\."):
            await lab.cluster.submit([lab.job("new")])

        unix.state("ana", 0)
        await lab.until(waits.id, "queued")
        await lab.cluster.apply(plan(start(waits.id, 1)))
        await lab.until(waits.id, "succeeded")


@pytest.fixture
def name() -> Iterator[str]:
    """Make an account of this machine."""
    name = f"u{uuid4().hex[:12]}"
    subprocess.run(["useradd", "-m", name], check=True)
    yield name
    subprocess.run(["userdel", "-r", name], check=True, stderr=subprocess.DEVNULL)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@as_root
@pytest.mark.skipif(not Path("/etc/pam.d/login").exists(), reason="needs PAM's service login")
class TestRealAccount:
    async def test_account_is_refused_from_its_expiry_until_its_extension(self, name, tmp_path):
        states = AccountStates(clock=count(step=100).__next__)
        directory = AccountDirectory(KnownAccounts(tmp_path), states=states)
        (tmp_path / "secrets").mkdir()
        assert (await directory.account(name)).user == name

        run("usermod", "-L", "-e", "1", name)
        with pytest.raises(Forbidden, match=rf"The account {name} has expired\."):
            await directory.account(name)
        assert [each.message for each in await hindrances("login", [name, "nobody-i-know"])] == [
            f"The account {name} has expired."
        ]

        run("usermod", "-U", "-e", "", name)
        assert (await directory.account(name)).user == name

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(["usermod", "-L"], id="locked"),
            pytest.param(["chage", "-d", "0"], id="password to be changed"),
        ],
    )
    async def test_account_that_is_locked_but_not_expired_is_admitted(self, name, change):
        run(*change, name)

        await AccountStates().check(name)

    async def test_missing_pam_service_file_skips_the_expiry_check(self, name):
        run("usermod", "-e", "1", name)

        await AccountStates("no-such-service").check(name)


def test_account_state_program_runs_without_site_packages():
    assert STATES[:3] == (sys.executable, "-I", "-S")
