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

from hub_platform import OWN_CONFIG, PASSWORD, HubPlatform
from ports import free_port
from runai.embedded.accounts.compared_callers import record_uids
from runai.embedded.directory import DataDirectory
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.spawner.local import RunaiLocalSpawner
from unix_accounts import accounts
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts Unix accounts' sessions"),
]

EARLIER = 54_321
SAME, OTHER, GONE, AWAY, NEVER = "daemon", "games", "gus", "ava", "sue"
THERE_AT_THE_START = "sys"
STATES = [
    pytest.param(SAME, "", id="same uid"),
    pytest.param(OTHER, "another person", id="other uid"),
    pytest.param(GONE, "", id="gone"),
    pytest.param(AWAY, "", id="away"),
    pytest.param(NEVER, "", id="never known"),
]
CONFIG = f"""
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{PASSWORD}"
c.DummyAuthenticator.allowed_users = {{"{THERE_AT_THE_START}"}}
c.DummyAuthenticator.allow_all = True
{OWN_CONFIG}
"""


def uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def sentence(name: str) -> str:
    return (
        f"{name} has uid {uid(name)} now, it was {EARLIER}: an admin says whether this is the same"
        " person."
    )


@dataclass
class Hub:
    """The platform, and each user's login cookie from before the known uid was changed."""

    platform: HubPlatform
    known: KnownAccounts
    cookies: dict[str, dict[str, str]]
    of_first_login: KnownAccount | None
    """What was known of the user OTHER after the first login."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    data_dir = tmp_path_factory.mktemp("compared")
    directory = DataDirectory(data_dir)
    directory.prepare(system_users=True)
    (data_dir / "jupyterhub_config.py").write_text(CONFIG)
    (data_dir / "projects.yaml").write_text("projects: {vision: {quota: 1}}\n")
    platform = HubPlatform(data_dir, free_port(), options=["--system-users"])
    known = KnownAccounts(data_dir)
    try:
        platform.start()
        names = (SAME, OTHER, GONE, AWAY, NEVER)
        cookies = {name: dict(log_in(platform, name).cookies) for name in names}
        first = known.get(OTHER)
        known.forget(OTHER)
        known.register(KnownAccount(OTHER, EARLIER, EARLIER, "/"))
        known.register(KnownAccount(GONE, EARLIER, EARLIER, "/", local=True))
        known.register(KnownAccount(AWAY, EARLIER, EARLIER, "/", local=False))
        yield Hub(platform, known, cookies, first)
    finally:
        platform.stop()


def log_in(platform: HubPlatform, name: str) -> httpx.Response:
    """Return the answer to a login with the right password."""
    with httpx.Client(base_url=platform.http.base_url, timeout=60) as browser:
        browser.get("/hub/login")
        form = {"username": name, "password": PASSWORD, "_xsrf": browser.cookies["_xsrf"]}
        return browser.post("/hub/login", data=form)


def by_cookie(path: str) -> Callable[[Hub, str], httpx.Response]:
    def ask(hub: Hub, name: str) -> httpx.Response:
        return httpx.get(
            hub.platform.http.base_url.join(path.format(name=name)),
            cookies=hub.cookies[name],
            timeout=60,
        )

    return ask


def by_token(path: str) -> Callable[[Hub, str], httpx.Response]:
    def ask(hub: Hub, name: str) -> httpx.Response:
        headers = {"Authorization": f"token {hub.platform.token(name)}"}
        url = hub.platform.http.base_url.join(path.format(name=name))
        return httpx.get(url, headers=headers, timeout=60)

    return ask


def by_cookie_of_the_service(path: str) -> Callable[[Hub, str], httpx.Response]:
    def ask(hub: Hub, name: str) -> httpx.Response:
        secret = DataDirectory(hub.platform.data_dir).hub_token()
        key = hashlib.sha256(b"cookies" + secret.encode()).digest()
        signed = create_signed_value(key, "service-runai", hub.platform.token(name)).decode()
        url = hub.platform.http.base_url.join(path)
        return httpx.get(url, cookies={"service-runai": signed}, timeout=60)

    return ask


WAYS = [
    pytest.param(by_cookie("/hub/home"), id="page of the hub"),
    pytest.param(by_cookie("/hub/spawn"), id="form of a start"),
    pytest.param(by_cookie("/hub/user/{name}/lab"), id="way to a notebook server"),
    pytest.param(by_token("/hub/api/user"), id="token at the hub, as a notebook server asks"),
    pytest.param(by_token("/services/runai/api/v1/whoami"), id="token at the service"),
    pytest.param(
        by_cookie_of_the_service("/services/runai/api/v1/workloads"), id="cookie of the service"
    ),
    pytest.param(by_cookie_of_the_service("/services/runai/"), id="page of the service"),
]


@pytest.mark.parametrize(("name", "refused"), STATES)
@pytest.mark.parametrize("ask", WAYS)
def test_a_name_with_another_uid_is_shown_nothing(
    hub: Hub, ask: Callable[[Hub, str], httpx.Response], name: str, refused: str
):
    answer = ask(hub, name)

    assert (answer.status_code == 403) == bool(refused), answer.text
    assert (sentence(OTHER) in answer.text) == bool(refused)
    # A server that does not run is 424: the way to its start.
    assert answer.status_code in ({403} if refused else {200, 302, 424})
    assert "/login" not in answer.headers.get("Location", "")


@pytest.mark.parametrize(("name", "refused"), STATES)
def test_a_login_of_a_name_with_another_uid_is_refused(hub: Hub, name: str, refused: str):
    answer = log_in(hub.platform, name)

    assert answer.status_code == (403 if refused else 302)
    assert (sentence(OTHER) in answer.text) == bool(refused)


def test_the_first_login_records_the_uid(hub: Hub):
    assert hub.of_first_login is not None
    assert hub.of_first_login.uid == uid(OTHER)


def test_another_person_can_log_out(hub: Hub):
    answer = by_cookie("/hub/logout")(hub, OTHER)

    assert answer.status_code == 302
    assert 'jupyterhub-hub-login=""' in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("kind", ["token", "cookie/jupyterhub-hub-login"])
def test_no_other_endpoint_names_the_owner_of_a_token_or_cookie(hub: Hub, kind: str):
    token = hub.platform.token(OTHER)

    answer = hub.platform.http.get(f"/hub/api/authorizations/{kind}/{token}")

    assert answer.status_code == 404
    assert OTHER not in answer.text


def test_an_admin_goes_on_reading_what_another_uid_left(hub: Hub):
    answer = hub.platform.http.get(f"/hub/api/users/{OTHER}")

    assert answer.json()["name"] == OTHER


def test_a_start_records_the_uids_of_the_hubs_users(hub: Hub):
    eventually(lambda: hub.known.get(THERE_AT_THE_START) is not None, what="the uid is known")

    known = hub.known.get(THERE_AT_THE_START)
    assert known is not None
    assert known.uid == uid(THERE_AT_THE_START)


async def test_recording_uids_passes_over_accounts_that_do_not_answer(tmp_path: Path):
    with accounts() as there:
        there.answer("pat", {"local": False})
        directory = there.directory(tmp_path / "data")

        await record_uids(["sue", "pat", "ana"], directory)

        assert [known.name for known in directory.known_accounts.all()] == ["ana"]


def test_a_notebook_server_of_a_unix_account_asks_the_hub_again_after_a_minute():
    with accounts() as there:
        spawner = RunaiLocalSpawner(user=SimpleNamespace(name="ana"), system_users=True)
        spawner._start_account = there.account("ana")
        server = Application()
        server.parse_command_line(spawner.get_args())

    assert HubOAuth(parent=server, api_token="unused").cache_max_age == 60
