"""A hub with Unix accounts answers a name's cookies and tokens while its uid is the known one.

On a real hub and service of `runai up --system-users`, with accounts that every machine has. Its
authenticator knows no accounts, as with single sign-on.
"""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.web import create_signed_value
from traitlets.config import Application

from hub_platform import OWN_CONFIG, PASSWORD, HubPlatform, one_gpu_platform
from runai.embedded.accounts.compared_callers import record_uids
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.spawner.local import RunaiLocalSpawner
from unix_accounts import accounts
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts Unix accounts' sessions"),
]

EARLIER_UID = 54_321
SAME_UID, CHANGED_UID, REMOVED, UNREACHABLE, UNKNOWN = "daemon", "games", "gus", "ava", "sue"
USER_AT_START = "sys"
STATES = [
    pytest.param(SAME_UID, False, id="same uid"),
    pytest.param(CHANGED_UID, True, id="changed uid"),
    pytest.param(REMOVED, False, id="removed account"),
    pytest.param(UNREACHABLE, False, id="unreachable account"),
    pytest.param(UNKNOWN, False, id="unknown account"),
]
CONFIG = f"""
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{PASSWORD}"
c.DummyAuthenticator.allowed_users = {{"{USER_AT_START}"}}
c.DummyAuthenticator.allow_all = True
{OWN_CONFIG}
"""


def uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def refusal_text(name: str) -> str:
    return (
        f"{name} has uid {uid(name)} now, it was {EARLIER_UID}: an admin says whether this is"
        " the same person."
    )


@dataclass
class Hub:
    """The platform, and each user's login cookie from before the known uid was changed."""

    platform: HubPlatform
    known_accounts: KnownAccounts
    cookies: dict[str, dict[str, str]]
    first_login_account: KnownAccount | None
    """The known account of the user CHANGED_UID after the first login."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    data_dir = tmp_path_factory.mktemp("compared")
    directory = DataDirectory(data_dir)
    directory.prepare(system_users=True)
    (data_dir / "jupyterhub_config.py").write_text(CONFIG)
    (data_dir / "projects.yaml").write_text("projects: {vision: {quota: 1}}\n")
    platform = one_gpu_platform(data_dir, "--system-users")
    known_accounts = KnownAccounts(data_dir)
    try:
        platform.start()
        names = (SAME_UID, CHANGED_UID, REMOVED, UNREACHABLE, UNKNOWN)
        cookies = {name: dict(log_in(platform, name).cookies) for name in names}
        first_login_account = known_accounts.get(CHANGED_UID)
        known_accounts.forget(CHANGED_UID)
        known_accounts.register(KnownAccount(CHANGED_UID, EARLIER_UID, EARLIER_UID, "/"))
        known_accounts.register(KnownAccount(REMOVED, EARLIER_UID, EARLIER_UID, "/", local=True))
        known_accounts.register(
            KnownAccount(UNREACHABLE, EARLIER_UID, EARLIER_UID, "/", local=False)
        )
        yield Hub(platform, known_accounts, cookies, first_login_account)
    finally:
        platform.stop()


def log_in(platform: HubPlatform, name: str) -> httpx.Response:
    """Return the answer to a login with the right password."""
    with httpx.Client(base_url=platform.http.base_url, timeout=60) as browser:
        browser.get("/hub/login")
        form = {"username": name, "password": PASSWORD, "_xsrf": browser.cookies["_xsrf"]}
        return browser.post("/hub/login", data=form)


def cookie_request(path: str) -> Callable[[Hub, str], httpx.Response]:
    def send_request(hub: Hub, name: str) -> httpx.Response:
        return httpx.get(
            hub.platform.http.base_url.join(path.format(name=name)),
            cookies=hub.cookies[name],
            timeout=60,
        )

    return send_request


def token_request(path: str) -> Callable[[Hub, str], httpx.Response]:
    def send_request(hub: Hub, name: str) -> httpx.Response:
        headers = {"Authorization": f"token {hub.platform.token(name)}"}
        url = hub.platform.http.base_url.join(path.format(name=name))
        return httpx.get(url, headers=headers, timeout=60)

    return send_request


def service_cookie_request(path: str) -> Callable[[Hub, str], httpx.Response]:
    def send_request(hub: Hub, name: str) -> httpx.Response:
        secret = DataDirectory(hub.platform.data_dir).hub_token()
        key = hashlib.sha256(b"cookies" + secret.encode()).digest()
        signed = create_signed_value(key, "service-runai", hub.platform.token(name)).decode()
        url = hub.platform.http.base_url.join(path)
        return httpx.get(url, cookies={"service-runai": signed}, timeout=60)

    return send_request


REQUESTS = [
    pytest.param(cookie_request("/hub/home"), id="page of the hub"),
    pytest.param(cookie_request("/hub/spawn"), id="start page"),
    pytest.param(cookie_request("/hub/user/{name}/lab"), id="redirect to a notebook server"),
    pytest.param(token_request("/hub/api/user"), id="token at the hub"),
    pytest.param(token_request("/services/runai/api/v1/whoami"), id="token at the service"),
    pytest.param(
        service_cookie_request("/services/runai/api/v1/workloads"), id="cookie of the service"
    ),
    pytest.param(service_cookie_request("/services/runai/"), id="page of the service"),
]


@pytest.mark.parametrize(
    ("send_request", "name", "is_refused"),
    [
        pytest.param(*request.values, *state.values, id=f"{request.id}, {state.id}")
        for request in REQUESTS
        # The account's state is compared in one place; each request shows that it is reached.
        for state in (STATES if request is REQUESTS[0] else STATES[:2])
    ],
)
def test_requests_of_a_user_with_a_changed_uid_are_forbidden(
    hub: Hub, send_request: Callable[[Hub, str], httpx.Response], name: str, is_refused: bool
):
    answer = send_request(hub, name)

    assert (answer.status_code == 403) == is_refused, answer.text
    assert (refusal_text(CHANGED_UID) in answer.text) == is_refused
    # A request to a server that does not run gets 424 and the link to its start.
    assert answer.status_code in ({403} if is_refused else {200, 302, 424})
    assert "/login" not in answer.headers.get("Location", "")


@pytest.mark.parametrize(("name", "is_refused"), STATES)
def test_login_of_a_user_with_a_changed_uid_is_forbidden(hub: Hub, name: str, is_refused: bool):
    answer = log_in(hub.platform, name)

    assert answer.status_code == (403 if is_refused else 302)
    assert (refusal_text(CHANGED_UID) in answer.text) == is_refused


def test_first_login_records_the_users_uid(hub: Hub):
    assert hub.first_login_account is not None
    assert hub.first_login_account.uid == uid(CHANGED_UID)


def test_user_with_a_changed_uid_can_log_out(hub: Hub):
    answer = cookie_request("/hub/logout")(hub, CHANGED_UID)

    assert answer.status_code == 302
    assert 'jupyterhub-hub-login=""' in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("kind", ["token", "cookie/jupyterhub-hub-login"])
def test_hub_api_does_not_reveal_the_owner_of_a_token_or_cookie(hub: Hub, kind: str):
    token = hub.platform.token(CHANGED_UID)

    answer = hub.platform.http.get(f"/hub/api/authorizations/{kind}/{token}")

    assert answer.status_code == 404
    assert CHANGED_UID not in answer.text


def test_admin_can_read_the_hub_user_with_a_changed_uid(hub: Hub):
    answer = hub.platform.http.get(f"/hub/api/users/{CHANGED_UID}")

    assert answer.json()["name"] == CHANGED_UID


def test_hub_start_records_uids_of_existing_users(hub: Hub):
    eventually(lambda: hub.known_accounts.get(USER_AT_START) is not None, what="the uid is known")

    account = hub.known_accounts.get(USER_AT_START)
    assert account is not None
    assert account.uid == uid(USER_AT_START)


async def test_uid_recording_skips_accounts_with_failed_lookups_and_records_the_next(
    tmp_path: Path,
):
    with accounts() as unix:
        unix.answer("pat", {"local": False})
        directory = unix.directory(tmp_path / "data")

        await record_uids(["sue", "pat", "ana"], directory)

        assert [account.name for account in directory.known_accounts.all()] == ["ana"]


def test_unix_notebook_server_rechecks_with_the_hub_after_a_minute():
    with accounts() as unix:
        spawner = RunaiLocalSpawner(user=SimpleNamespace(name="ana"), system_users=True)
        spawner._start_account = unix.account("ana")
        server = Application()
        server.parse_command_line(spawner.get_args())

    assert HubOAuth(parent=server, api_token="unused").cache_max_age == 60
