"""Logins with Unix passwords: the checked account is the one that runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pamela
import pytest
from jupyterhub.auth import DummyAuthenticator, PAMAuthenticator
from tornado import web
from traitlets import Unicode
from traitlets.config import Config

from runai.embedded.accounts.unix_authenticator import (
    UnixAuthenticator,
    pam_service,
    with_checked_accounts,
)
from runai.embedded.data_directory import DataDirectory
from runai.embedded.hub import EmbeddedHub
from runai.embedded.settings import Settings

PASSWORDS = {"dora": "of dora", "Dora": "of Dora", "ana": "of ana", "ben": "of ben", "cy": "of cy"}
SWAPPED_NAMES = {"ana": "ben", "ben": "ana"}
CAPITALS_MESSAGE = "Invalid username or password. Capitals do not count here: Dora is dora. "

pytestmark = pytest.mark.skipif(
    not hasattr(pamela.LIBPAM, "pam_start_confdir"), reason="PAM reads services of /etc alone"
)


@pytest.fixture
def pam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the real PAM ask a program of ours, which needs no accounts and no root."""
    passwords_file = tmp_path / "passwords"
    passwords_file.write_text(
        "".join(f"{name}:{password}\n" for name, password in PASSWORDS.items())
    )
    check = tmp_path / "check"
    check.write_text(
        f'#!/bin/sh\ntr -d "\\0" | sed "s/^/$PAM_USER:/" | grep -qxFf - {passwords_file}\n'
    )
    check.chmod(0o755)
    services = tmp_path / "services"
    services.mkdir()
    (services / "login").write_text(
        f"auth required pam_exec.so quiet expose_authtok {check}\naccount required pam_permit.so\n"
    )

    def start(service: bytes, user: bytes, conversation: Any, handle: Any) -> int:
        folder = os.fsencode(services)
        started: int = pamela.LIBPAM.pam_start_confdir(service, user, conversation, folder, handle)
        return started

    monkeypatch.setattr(pamela, "PAM_START", start)


def patch_accounts(monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
    """Make these the accounts of the machine."""
    entries = {
        name: pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", "/bin/sh"))
        for uid, name in enumerate(names, start=54_321)
    }
    # DOMAIN\NAME is NAME, as with winbind.
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entries[name.removeprefix("lab\\")])
    monkeypatch.setattr(pwd, "getpwuid", {entry.pw_uid: entry for entry in entries.values()}.get)


class Own(PAMAuthenticator):  # type: ignore[misc]
    """An authenticator of an admin's file, which is PAM still."""


async def log_in(
    name: str,
    password: str,
    settings: Mapping[str, object],
    kind: type[PAMAuthenticator] = PAMAuthenticator,
) -> str | None:
    """Return the name of the new session's user, None after a refusal."""
    config: Any = Config()
    config.PAMAuthenticator.update({"allow_all": True, **settings})
    authenticator = with_checked_accounts(kind)(config=config)
    data = {"username": name, "password": password}
    user = await authenticator.get_authenticated_user(None, data)
    return None if user is None else user["name"]


@pytest.mark.usefixtures("pam")
@pytest.mark.parametrize("kind", [PAMAuthenticator, Own], ids=["pam", "subclass"])
@pytest.mark.parametrize(
    ("typed_name", "password_owner", "session_user", "settings"),
    [
        pytest.param("dora", "dora", "dora", {}, id="plain"),
        pytest.param("Dora", "dora", "dora", {}, id="capitals"),
        pytest.param("dora", "Dora", "Dora", {"username_map": {"dora": "Dora"}}, id="to capitals"),
        pytest.param("Ana", "cy", "cy", {"username_map": {"ana": "cy"}}, id="mapped"),
        pytest.param("ana", "ben", "ben", {"username_map": SWAPPED_NAMES}, id="swapped"),
        pytest.param(
            "lab\\Dora", "Dora", "Dora", {"pam_normalize_username": True}, id="normalized by PAM"
        ),
    ],
)
async def test_unix_login_checks_the_password_of_the_mapped_account(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[PAMAuthenticator],
    typed_name: str,
    password_owner: str,
    session_user: str,
    settings: Mapping[str, object],
):
    patch_accounts(monkeypatch, PASSWORDS)

    name = await log_in(typed_name, PASSWORDS[password_owner], settings, kind)

    assert (name, type(name)) == (session_user, str)


@pytest.mark.usefixtures("pam")
@pytest.mark.parametrize(
    ("typed_name", "settings"),
    [
        pytest.param("ana", {"username_map": {"ana": "cy"}}, id="mapped"),
        pytest.param("ana", {"username_map": SWAPPED_NAMES}, id="swapped"),
        pytest.param("ana", {"username_map": {"ana": "zoe"}}, id="mapped to no account"),
        pytest.param("zoe", {"pam_normalize_username": True}, id="no account"),
        pytest.param("Zoe", {"pam_normalize_username": True}, id="no account, capitals"),
    ],
)
async def test_unix_login_refuses_the_password_of_the_unmapped_name(
    monkeypatch: pytest.MonkeyPatch, typed_name: str, settings: Mapping[str, object]
):
    patch_accounts(monkeypatch, PASSWORDS)

    assert await log_in(typed_name, "of ana", settings) is None


@pytest.mark.usefixtures("pam")
async def test_username_map_target_without_a_unix_account_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    patch_accounts(monkeypatch, PASSWORDS)

    await log_in("ana", "of ana", {"username_map": {"ana": "zoe"}})

    assert "ana logs in as zoe, which this machine does not have." in caplog.text


@pytest.mark.usefixtures("pam")
@pytest.mark.parametrize("accounts", [["Dora", "dora"], ["Dora"], []], ids="/".join)
async def test_refused_login_with_a_capitalized_user_name_explains_case_folding(
    monkeypatch: pytest.MonkeyPatch, accounts: list[str]
):
    patch_accounts(monkeypatch, accounts)

    with pytest.raises(web.HTTPError) as refused:
        await log_in("Dora", "of Dora", {})

    assert refused.value.status_code == 403
    assert str(refused.value.get_message()).startswith(CAPITALS_MESSAGE)


@pytest.mark.usefixtures("pam")
@pytest.mark.parametrize(
    ("typed_name", "settings"),
    [
        pytest.param("dora", {}, id="plain"),
        pytest.param("ben", {"username_map": {"ben": "dora"}}, id="mapped"),
        pytest.param("dora", {"pam_normalize_username": True}, id="normalized by PAM"),
        pytest.param("dora", {"admin_groups": {"root"}}, id="admin groups"),
    ],
)
async def test_correct_password_without_a_unix_account_is_refused_with_a_message(
    monkeypatch: pytest.MonkeyPatch, typed_name: str, settings: Mapping[str, object]
):
    patch_accounts(monkeypatch, ["ana"])

    with pytest.raises(web.HTTPError) as refused:
        await log_in(typed_name, "of dora", settings)

    assert refused.value.status_code == 403
    assert "There is no Unix account dora on this machine." in str(refused.value.get_message())


@pytest.mark.parametrize(
    ("system_users", "file", "uses_pam"),
    [
        pytest.param(True, "", True, id="system users"),
        pytest.param(False, "c.JupyterHub.authenticator_class = 'PAM'", True, id="pam"),
        pytest.param(
            True,
            "from jupyterhub.auth import PAMAuthenticator\n"
            "class Own(PAMAuthenticator): ...\n"
            "c.JupyterHub.authenticator_class = Own",
            True,
            id="subclass",
        ),
        pytest.param(True, "c.JupyterHub.authenticator_class = 'dummy'", False, id="not pam"),
        pytest.param(False, "", False, id="accounts of the platform"),
    ],
)
def test_hub_uses_the_unix_authenticator_if_the_configured_authenticator_is_pam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_users: bool, file: str, uses_pam: bool
):
    DataDirectory(tmp_path).prepare(system_users=False)
    for name, value in Settings(tmp_path, system_users=system_users).environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "jupyterhub_config.py").write_text(file)
    hub = EmbeddedHub()

    hub.load_config_file("jupyterhub_config", str(tmp_path))

    assert issubclass(hub.authenticator_class, UnixAuthenticator) == uses_pam


class Sshd(PAMAuthenticator):  # type: ignore[misc]
    """An authenticator with another service of PAM."""

    service = Unicode("sshd", config=True)


@pytest.mark.parametrize(
    ("kind", "settings", "service"),
    [
        pytest.param(PAMAuthenticator, {}, "login", id="default"),
        pytest.param(PAMAuthenticator, {"PAMAuthenticator.service": "gpu"}, "gpu", id="chosen"),
        pytest.param(Own, {"Own.service": "own"}, "own", id="chosen for a subclass"),
        pytest.param(Sshd, {}, "sshd", id="default of a subclass"),
        pytest.param(DummyAuthenticator, {}, "login", id="single sign-on"),
        pytest.param("dummy", {"PAMAuthenticator.service": "gpu"}, "gpu", id="name of a class"),
        pytest.param(Own, {"PAMAuthenticator.check_account": False}, "", id="no account check"),
    ],
)
def test_account_expiry_uses_the_pam_service_of_logins(
    kind: object, settings: Mapping[str, object], service: str
):
    config = Config({"JupyterHub": {"authenticator_class": kind}})
    for name, value in settings.items():
        section, option = name.split(".")
        config[section][option] = value

    assert pam_service(config) == service
