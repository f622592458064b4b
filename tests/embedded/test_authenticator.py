"""The login: accounts may enter, nobody else, guesses are slowed down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runai.embedded.accounts import Accounts
from runai.embedded.authenticator import AccountsAuthenticator
from runai.embedded.directory import DataDirectory

PASSWORD = "correct horse"


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    accounts = Accounts(directory)
    accounts.add("ana", PASSWORD)
    accounts.add("root", PASSWORD, admin=True)
    return accounts


@pytest.fixture
async def authenticator(accounts: Accounts, tmp_path: Path) -> AccountsAuthenticator:
    return AccountsAuthenticator(data_dir=str(tmp_path), delay_seconds=0.01)


async def log_in(authenticator: AccountsAuthenticator, name: str, password: str) -> Any:
    """Log in the way that JupyterHub's form does."""
    data = {"username": name, "password": password}
    return await authenticator.get_authenticated_user(None, data)


@pytest.mark.parametrize(("name", "admin"), [("ana", None), ("root", True), ("ANA", None)])
async def test_who_has_an_account_enters(
    authenticator: AccountsAuthenticator, name: str, admin: bool | None
):
    entered = await log_in(authenticator, name, PASSWORD)

    assert (entered["name"], entered["admin"]) == (name.lower(), admin)


@pytest.mark.parametrize(("name", "password"), [("ana", "wrong"), ("bo", PASSWORD), ("", "")])
async def test_nobody_else_does(authenticator: AccountsAuthenticator, name: str, password: str):
    assert await log_in(authenticator, name, password) is None


async def test_a_new_account_enters_without_a_restart(
    authenticator: AccountsAuthenticator, accounts: Accounts
):
    assert await log_in(authenticator, "bo", PASSWORD) is None
    accounts.add("bo", PASSWORD)

    assert (await log_in(authenticator, "bo", PASSWORD))["name"] == "bo"


async def test_who_is_removed_has_to_log_in_again(
    authenticator: AccountsAuthenticator, accounts: Accounts
):
    ana = SimpleNamespace(name="ana")
    before = await authenticator.refresh_user(ana)
    accounts.remove("ana")

    assert (before, await authenticator.refresh_user(ana)) == (True, False)


async def test_guesses_for_an_account_wait_for_one_another(
    accounts: Accounts, tmp_path: Path, eventually_async: Callable[..., Any]
):
    slow = AccountsAuthenticator(data_dir=str(tmp_path), delay_seconds=3600)
    guess = asyncio.create_task(log_in(slow, "ana", "wrong"))
    await eventually_async(lambda: "ana" in slow._turns and slow._turns["ana"].locked())
    second = asyncio.create_task(log_in(slow, "ana", PASSWORD))
    other = await log_in(slow, "root", PASSWORD)

    assert other["name"] == "root"
    assert not second.done()
    guess.cancel()
    assert (await second)["name"] == "ana"


async def test_names_that_do_not_exist_take_no_memory(authenticator: AccountsAuthenticator):
    for name in ("x", "y", "z"):
        await log_in(authenticator, name, "wrong")

    assert set(authenticator._turns) == {""}


async def test_the_list_of_accounts_is_what_allows(authenticator: AccountsAuthenticator):
    assert authenticator.any_allow_config
    assert not authenticator.allow_all
    assert authenticator.check_allowed("ana")
    assert not authenticator.check_allowed("bo")
