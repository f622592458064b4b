"""The login: accounts are accepted, other names refused, all attempts take the same time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import (
    AccountsAuthenticator,
    AccountsUnavailable,
    TooManyLogins,
)
from runai.embedded.accounts.login_attempts import AT_ONCE, MAX_WRONG, LoginAttempts
from runai.embedded.data_directory import DataDirectory
from runai.embedded.hub import EmbeddedHub

PASSWORD = "correct horse"


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Accounts:
    """Create two accounts with cheap hashes."""
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 16)
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    accounts = Accounts(directory)
    accounts.add("ana", PASSWORD)
    accounts.add("root", PASSWORD, admin=True)
    return accounts


@pytest.fixture
async def authenticator(accounts: Accounts, tmp_path: Path) -> AccountsAuthenticator:
    authenticator = AccountsAuthenticator(data_dir=str(tmp_path), log=logging.getLogger("hub"))
    authenticator.attempts = LoginAttempts(authenticator.log, sleep=lambda _: asyncio.sleep(0))
    return authenticator


async def log_in(authenticator: AccountsAuthenticator, name: str, password: str) -> Any:
    """Log in like JupyterHub's form."""
    data = {"username": name, "password": password}
    return await authenticator.get_authenticated_user(None, data)


async def try_wrong_passwords(authenticator: AccountsAuthenticator, name: str, times: int) -> None:
    """Count wrong passwords without the time of hashing."""

    async def wrong() -> None:
        return None

    for _ in range(times):
        await authenticator.attempts.answer(name, wrong)


@pytest.mark.parametrize(("name", "admin"), [("ana", None), ("root", True), ("ANA", None)])
async def test_account_logs_in_with_its_password(
    authenticator: AccountsAuthenticator, name: str, admin: bool | None
):
    login = await log_in(authenticator, name, PASSWORD)

    assert (login["name"], login["admin"]) == (name.lower(), admin)


async def test_authenticator_refuses_a_wrong_password(authenticator: AccountsAuthenticator):
    assert await log_in(authenticator, "ana", "wrong") is None


async def test_new_account_can_log_in_without_a_restart(
    authenticator: AccountsAuthenticator, accounts: Accounts
):
    assert await log_in(authenticator, "bo", PASSWORD) is None
    accounts.add("bo", PASSWORD)

    assert (await log_in(authenticator, "bo", PASSWORD))["name"] == "bo"


async def test_refresh_fails_after_the_account_is_removed(
    authenticator: AccountsAuthenticator, accounts: Accounts
):
    ana = SimpleNamespace(name="ana")
    before = await authenticator.refresh_user(ana)
    accounts.remove("ana")

    assert before is True
    assert await authenticator.refresh_user(ana) is False


async def test_login_with_an_unknown_name_costs_the_same_hash_as_with_a_known_name(
    authenticator: AccountsAuthenticator, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 2**14)
    accounts.set_password("ana", PASSWORD)
    hash_costs: list[tuple[int, int]] = []
    scrypt = hashlib.scrypt

    def recording_scrypt(password: bytes, *, n: int, r: int, **rest: Any) -> bytes:
        hash_costs.append((n, r))
        return scrypt(password, n=n, r=r, **rest)

    monkeypatch.setattr(hashlib, "scrypt", recording_scrypt)
    await log_in(authenticator, "ana", "wrong")
    await log_in(authenticator, "bo", "wrong")

    assert hash_costs == [(2**14, 8)] * 2


async def test_excess_concurrent_logins_get_429_with_retry_after(
    accounts: Accounts, authenticator: AccountsAuthenticator
):
    authenticator.attempts = LoginAttempts(authenticator.log, sleep=asyncio.sleep, slot_timeout_s=0)
    tries = [asyncio.create_task(log_in(authenticator, "ana", "x")) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyLogins) as refused:
        await log_in(authenticator, "root", PASSWORD)
    for login_task in tries:
        login_task.cancel()
    await asyncio.gather(*tries, return_exceptions=True)

    assert refused.value.status_code == 429
    assert refused.value.headers["Retry-After"] == "10"


async def test_guessed_account_is_listed_for_admins_and_owner_can_still_log_in(
    authenticator: AccountsAuthenticator,
):
    before = authenticator.note_for_admins()
    await try_wrong_passwords(authenticator, "ana", MAX_WRONG)
    await try_wrong_passwords(authenticator, "<b>nobody", MAX_WRONG)

    assert before == ""
    assert "Many wrong passwords within the last hour for: ana." in authenticator.note_for_admins()
    assert (await log_in(authenticator, "ana", PASSWORD))["name"] == "ana"


@pytest.mark.parametrize(
    ("user", "is_visible"),
    [
        pytest.param(None, False, id="login page"),
        pytest.param(SimpleNamespace(admin=False), False, id="member"),
        pytest.param(SimpleNamespace(admin=True), True, id="admin"),
    ],
)
async def test_hub_pages_display_the_password_guessing_warning_only_to_admins(
    authenticator: AccountsAuthenticator, user: object, is_visible: bool
):
    await try_wrong_passwords(authenticator, "ana", MAX_WRONG)
    hub: Any = SimpleNamespace(authenticator=authenticator)

    assert bool(EmbeddedHub._note_for_admins(hub, user)) == is_visible


async def test_no_password_reaches_the_log(
    authenticator: AccountsAuthenticator, caplog: pytest.LogCaptureFixture
):
    await try_wrong_passwords(authenticator, "ana", MAX_WRONG - 1)
    with caplog.at_level(logging.DEBUG):
        await log_in(authenticator, "ana", "a-tried-password")

    assert "50 wrong passwords for ana" in caplog.text
    assert "a-tried-password" not in caplog.text


@pytest.mark.parametrize(
    "operation",
    [
        lambda hub: log_in(hub, "ana", PASSWORD),
        lambda hub: hub.refresh_user(SimpleNamespace(name="ana")),
        lambda hub: asyncio.to_thread(hub.check_allowed, "ana"),
    ],
    ids=["login", "page", "token"],
)
async def test_unreadable_accounts_file_makes_logins_503_and_is_noted_for_admins(
    authenticator: AccountsAuthenticator,
    caplog: pytest.LogCaptureFixture,
    operation: Callable[[AccountsAuthenticator], Awaitable[object]],
):
    path = DataDirectory(Path(authenticator.data_dir)).accounts
    path.unlink()
    path.mkdir()  # a file of another account cannot be read either

    with pytest.raises(AccountsUnavailable) as refused:
        await operation(authenticator)

    assert refused.value.status_code == 503
    assert str(path) not in str(refused.value.log_message)
    assert f"The accounts cannot be read: Is a directory ({path})." in caplog.text
    assert f"({path}). There is no login" in authenticator.note_for_admins()


async def test_authenticator_allows_only_users_in_the_account_list(
    authenticator: AccountsAuthenticator,
):
    assert authenticator.any_allow_config
    assert not authenticator.allow_all
    assert authenticator.check_allowed("ana")
    assert not authenticator.check_allowed("bo")
