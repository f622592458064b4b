"""Identification by a real JupyterHub: tokens, scopes, groups, services, login by OAuth.

The hub runs the service as it does in production (managed, with its environment); users are ana,
nel (in the group nlp-people) and root (an admin).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.requests import Request

from hub_platform import ACCESS_SCOPE, SERVICE_PATH, SUBMIT_SCOPE, HubPlatform
from runai.hub_service.api.auth.hub_auth import CACHE_TTL_S, HubAuthenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.event_stream import CHECK_EVERY_S
from runai.hub_service.cli.doctor.kubernetes_checks import check_hub
from runai.hub_service.server.settings import Config
from runai.hub_service.wire.errors import RunaiError
from users_hub import HUB_TOKEN, IMPOSTOR_TOKEN, READER_TOKEN, log_in, login_cookies

pytestmark = [pytest.mark.hub]


@pytest.fixture
def hub(real_hub: HubPlatform) -> HubPlatform:
    return real_hub


# -- the checks of doctor ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "verdict", "message"),
    [
        (READER_TOKEN, "ok", "JupyterHub knows the service as runai"),
        (IMPOSTOR_TOKEN, "failure", "the service may not list:users, read:groups"),
        ("made-up", "failure", "JupyterHub does not know the service's token (status 403)"),
    ],
    ids=["with its role", "without a role", "another token"],
)
def test_doctor_reports_whether_the_hub_knows_the_service(hub, token, verdict, message):
    settings = Config.from_environment(
        {
            "RUNAI_DATA_DIR": "/data",
            "RUNAI_HUB_TOKEN": "secret",
            "JUPYTERHUB_API_URL": f"{hub.url}/hub/api",
            "JUPYTERHUB_API_TOKEN": token,
        }
    )

    (finding,) = check_hub(settings.hub)

    assert (finding.verdict, finding.text[: len(message)]) == (verdict, message)
    assert bool(finding.mend) == (verdict == "failure")


# -- tokens --------------------------------------------------------------------------------------


def test_whoami_returns_user_of_token_and_groups_from_hub(hub):
    reply = hub.call_service(hub.token("nel"), "api/v1/whoami").json()

    assert (reply["name"], reply["groups"], reply["projects"]) == ("nel", ["nlp-people"], ["nlp"])
    assert (reply["kind"], reply["admin"]) == ("user", False)


@pytest.mark.parametrize(
    ("granted_scope", "missing_scope"),
    [(SUBMIT_SCOPE, ACCESS_SCOPE), (ACCESS_SCOPE, SUBMIT_SCOPE)],
    ids=["no access scope", "no submit scope"],
)
def test_refusal_names_the_missing_scope_of_a_token(hub, granted_scope, missing_scope):
    reply = hub.call_service(
        hub.token("ana", granted_scope), "api/v1/workloads", "POST", json={"command": ["true"]}
    )

    assert (reply.status_code, reply.json()["code"]) == (403, "missing_scope")
    assert missing_scope in reply.json()["detail"]


def test_service_named_like_a_user_is_not_that_user(hub):
    reply = hub.call_service(IMPOSTOR_TOKEN, "api/v1/whoami")

    assert (reply.status_code, reply.json()["code"]) == (403, "not_a_user")


def test_whoami_returns_503_while_hub_database_fails(hub):
    token = hub.token("ana")
    with hub.failing_database(reads=True):
        reply = hub.call_service(token, "api/v1/whoami")

    assert (reply.status_code, reply.json()["code"]) == (503, "hub_unavailable")
    assert hub.call_service(token, "api/v1/whoami").json()["name"] == "ana"


@dataclass
class Clock:
    """A clock by which the hub's cached answers expire."""

    ahead: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch) -> Clock:
    import jupyterhub.services.auth

    from runai.hub_service.api.auth import hub_auth

    clock = Clock()
    for module in (jupyterhub.services.auth, hub_auth):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def authenticator(
    hub: HubPlatform, make_authenticator: Callable[..., HubAuthenticator]
) -> HubAuthenticator:
    """Return the service's own authenticator, with a clock that the test sets."""
    return make_authenticator(f"{hub.url}/hub/api", READER_TOKEN)


async def actor_or_error(authenticator: HubAuthenticator, token: str) -> Actor | str:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    request = Request({"type": "http", "method": "GET", "path": SERVICE_PATH, "headers": headers})
    try:
        return await authenticator.actor(request)
    except RunaiError as refused:
        return refused.code


async def test_revoked_token_is_refused_within_a_minute_of_its_last_use(hub, clock, authenticator):
    token = hub.token("ana")
    assert isinstance(await actor_or_error(authenticator, token), Actor)
    tokens = hub.http.get("/hub/api/users/ana/tokens").json()["api_tokens"]
    newest = max(tokens, key=lambda entry: entry["created"])
    hub.http.delete(f"/hub/api/users/ana/tokens/{newest['id']}")

    clock.ahead = CACHE_TTL_S + 1

    assert await actor_or_error(authenticator, token) == "unauthenticated"
    assert hub.call_service(token, "api/v1/whoami").status_code == httpx.codes.UNAUTHORIZED
    assert CACHE_TTL_S + CHECK_EVERY_S < 60  # a stream checks its reader in between


async def test_hub_group_change_updates_the_users_groups_within_a_minute(hub, clock, authenticator):
    token = hub.token("gus")
    hub.http.post("/hub/api/groups/nlp-people/users", json={"users": ["gus"]})
    before = await actor_or_error(authenticator, token)
    hub.http.request("DELETE", "/hub/api/groups/nlp-people/users", json={"users": ["gus"]})

    clock.ahead = CACHE_TTL_S + 1
    after = await actor_or_error(authenticator, token)

    assert isinstance(before, Actor)
    assert isinstance(after, Actor)
    assert before.groups == frozenset({"nlp-people"})
    assert after.groups == frozenset()


def test_hub_submits_a_session_to_the_project_of_its_owners_groups(hub):
    hub.token("nel")
    session = {"kind": "session", "owner": "nel", "name": "lab-nel", "gpus": 0.5}
    reply = hub.call_service(HUB_TOKEN, "api/v1/workloads", "POST", json=session)
    refused = hub.call_service(
        HUB_TOKEN, "api/v1/workloads", "POST", json={**session, "owner": "nobody-here"}
    )

    hub.call_service(HUB_TOKEN, "api/v1/workloads/nlp/lab-nel", "DELETE")
    assert reply.json()["workloads"][0]["id"] == "nlp/lab-nel"
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


async def test_hub_server_list_includes_pending_notebook_servers(hub, authenticator):
    for name, server in (("ana", ""), ("zoe", "big")):
        hub.http.post(f"/hub/api/users/{name}")
        hub.http.post(f"/hub/api/users/{name}/servers/{server}")

    listed = {name: set(servers) for name, servers in (await authenticator.servers()).items()}
    assert listed == {"ana": {""}, "zoe": {"big"}}
    hub.http.delete("/hub/api/users/ana/server")
    hub.http.delete("/hub/api/users/zoe/servers/big")


# -- the page ------------------------------------------------------------------------------------


@pytest.fixture
def browser(hub) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hub.url, follow_redirects=True, timeout=60) as http:
        yield http


def test_service_page_opens_after_hub_login_and_sets_a_protected_cookie(browser):
    page = log_in(browser)

    assert (page.status_code, page.url.path) == (200, SERVICE_PATH)
    assert '<p class="user">ana</p>' in page.text
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    cookie = login_cookies(browser)["service-runai"]
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "lax"


def test_login_redirect_has_oauth_state_and_pkce_challenge(hub):
    with httpx.Client(base_url=hub.url, timeout=60) as http:
        redirect = http.get(f"{SERVICE_PATH}login")
    query = parse_qs(urlsplit(redirect.headers["location"]).query)

    assert {"state", "code_challenge", "code_challenge_method"} <= query.keys()
    assert query["code_challenge_method"] == ["S256"]


FOREIGN_ADDRESSES = (
    "https://evil.example/",
    "//evil.example/",
    "/services/runai/..//evil",
    "/hub/",
    "/services/runai/../../user/eve/",
    "/services/runai/%2e%2e/%2e%2e/user/eve/",
    "/services/runai/\\evil.example",
    "/services/runai/?a\r\nSet-Cookie: b=c",
    "/services/runai/?a=//evil.example",
)


def test_login_ignores_redirect_targets_outside_the_service(browser):
    log_in(browser)
    pages = {
        address: browser.get(f"{SERVICE_PATH}login", params={"next": address})
        for address in FOREIGN_ADDRESSES
    }

    landings = {address: (page.status_code, page.url.path) for address, page in pages.items()}
    assert landings == dict.fromkeys(FOREIGN_ADDRESSES, (200, SERVICE_PATH))


def test_login_returns_to_the_requested_usage_page_and_time_range(hub, browser):
    log_in(browser)
    browser.cookies.delete("service-runai", path=SERVICE_PATH)
    page = browser.get(f"{SERVICE_PATH}usage", params={"range": "7d"})

    assert (page.url.path, page.url.query) == (f"{SERVICE_PATH}usage", b"range=7d")
    assert "the last 7 days" in page.text


def test_login_begun_in_a_different_browser_is_refused(hub, browser):
    log_in(browser)
    with httpx.Client(base_url=hub.url, timeout=60) as other:
        authorize_url = other.get(f"{SERVICE_PATH}login").headers["location"]
    # The victim's browser is sent to an address with the attacker's state.
    page = browser.get(authorize_url)

    assert (page.status_code, page.json()["code"]) == (400, "login_failed")


JOB = {"command": ["true"], "project": "vision"}


def test_browser_request_without_own_origin_and_xsrf_token_submits_no_job(hub, browser):
    log_in(browser)
    xsrf = login_cookies(browser)["_xsrf"].value
    workloads = f"{SERVICE_PATH}api/v1/workloads"
    own_origin = {"Origin": hub.url}
    attempts = {
        "no headers": {},
        "origin alone": own_origin,
        "token alone": {"X-XSRFToken": xsrf},
        "foreign origin": {"Origin": "https://evil.example", "X-XSRFToken": xsrf},
        "foreign site": {"Sec-Fetch-Site": "cross-site", **own_origin, "X-XSRFToken": xsrf},
        "a wrong token": {**own_origin, "X-XSRFToken": "0" * 64},
        "origin and token": {**own_origin, "X-XSRFToken": xsrf},
        "token and fetch metadata": {"Sec-Fetch-Site": "same-origin", "X-XSRFToken": xsrf},
    }
    outcomes = {
        name: browser.post(workloads, json=JOB, headers=headers).json().get("code", "done")
        for name, headers in attempts.items()
    }

    assert outcomes == {
        "no headers": "cross_site",
        "origin alone": "xsrf",
        "token alone": "cross_site",
        "foreign origin": "cross_site",
        "foreign site": "cross_site",
        "a wrong token": "xsrf",
        "origin and token": "done",
        "token and fetch metadata": "done",
    }


def test_whoami_gives_pages_their_xsrf_token(browser):
    log_in(browser)
    reply = browser.get(f"{SERVICE_PATH}api/v1/whoami")

    assert reply.json()["name"] == "ana"
    assert reply.headers["X-XSRFToken"] == login_cookies(browser)["_xsrf"].value


def test_service_refuses_forged_login_cookie(hub, browser):
    log_in(browser)
    cookie = login_cookies(browser)["service-runai"]
    forged = cookie.value.rsplit("|", 1)[0] + "|" + "0" * 64
    with httpx.Client(base_url=hub.url, cookies={cookie.name: forged}, timeout=60) as forger:
        reply = forger.get(f"{SERVICE_PATH}api/v1/whoami")

    assert reply.status_code == httpx.codes.UNAUTHORIZED
