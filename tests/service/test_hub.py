"""Who is who, asked of a real JupyterHub: tokens, scopes, groups, services, login by OAuth.

The hub runs the service as it does in production (managed, with its environment); users are ana,
nel (in the group nlp-people) and root (an admin). What it may cost is one hub for all tests.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from runai.hub_service.api.hub_auth import KEEP_S, HubAuthenticator
from runai.hub_service.config import Config
from waiting import eventually

pytestmark = [pytest.mark.hub]

PASSWORD = "a-password-of-the-tests"
TESTER = "token-of-the-tester"
READER = "token-with-the-rights-of-the-service"
IMPOSTOR = "token-of-the-service-named-ana"
OPEN = "access:services!service=runai"
SUBMIT = "custom:runai:submit"
ROOT = "/services/runai/"

CONFIG = """
import sys
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.proxy_class = "runai-embedded"
c.JupyterHub.allow_named_servers = True
c.JupyterHub.db_url = "sqlite:///{data}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{data}/cookie_secret"
c.JupyterHub.pid_file = ""
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{data}/{{username}}"
c.Spawner.cmd = ["sleep", "600"]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.Authenticator.admin_users = {{"root"}}
c.JupyterHub.load_groups = {{"nlp-people": {{"users": ["nel"]}}}}
c.JupyterHub.services = [
    {{
        "name": "runai",
        "url": "http://127.0.0.1:{service_port}",
        "command": [sys.executable, "-P", "-m", "runai.hub_service"],
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": ["{open}", "{submit}"],
        "environment": {{
            "RUNAI_DATA_DIR": "{data}",
            "RUNAI_HUB_TOKEN": "hub-secret",
            "RUNAI_SIMULATE": "2",
            "RUNAI_PROJECTS": "{data}/projects.yaml",
        }},
    }},
    {{"name": "tester", "api_token": "{tester}"}},
    {{"name": "reader", "api_token": "{reader}"}},
    {{"name": "ana", "api_token": "{impostor}"}},
]
c.JupyterHub.custom_scopes = {{"{submit}": {{"description": "Submit."}}}}
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", "{open}", "{submit}"]}},
    {{
        "name": "tester",
        "services": ["tester"],
        "scopes": ["admin:users", "admin:servers", "tokens"],
    }},
    {{"name": "impostor", "services": ["ana"], "scopes": ["{open}", "{submit}"]}},
    {{
        "name": "runai",
        "services": ["runai", "reader"],
        "scopes": ["list:users", "read:users:groups", "read:roles:users", "read:servers"],
    }},
]
"""

PROJECTS = """
projects:
  vision:
    quota: 1
    members: [ana]
  nlp:
    quota: 1
    groups: [nlp-people]
"""


@dataclass
class Hub:
    url: str

    @property
    def admin(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"token {TESTER}"})

    def token(self, user: str, *scopes: str) -> str:
        with self.admin as http:
            http.post(f"/hub/api/users/{user}")
            reply = http.post(f"/hub/api/users/{user}/tokens", json={"scopes": [*scopes]})
            return str(reply.json()["token"])

    def ask(self, token: str, path: str, method: str = "GET", **request: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=30) as http:
            return http.request(method, f"{ROOT}{path}", **request)


@pytest.fixture(scope="session")  # xdist may run other modules in between
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    data = tmp_path_factory.mktemp("hub")
    port = unused_port()
    (data / "projects.yaml").write_text(PROJECTS)
    (data / "config.py").write_text(
        CONFIG.format(
            port=port,
            hub_port=unused_port(),
            service_port=unused_port(),
            data=data,
            password=PASSWORD,
            tester=TESTER,
            impostor=IMPOSTOR,
            reader=READER,
            open=OPEN,
            submit=SUBMIT,
        )
    )
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jupyterhub", "-f", str(data / "config.py")],
            cwd=data,
            stdout=log,
            stderr=log,
            env={k: v for k, v in os.environ.items() if not k.startswith("JUPYTERHUB")},
        )
    try:
        eventually(lambda: _answers(f"http://127.0.0.1:{port}{ROOT}health", process), within=90)
        yield Hub(f"http://127.0.0.1:{port}")
    except AssertionError:
        print((data / "log").read_text())
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return httpx.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_says_who_asks_and_the_hub_in_which_groups(hub):
    reply = hub.ask(hub.token("nel", OPEN, SUBMIT), "api/v1/whoami").json()

    assert (reply["name"], reply["groups"], reply["projects"]) == ("nel", ["nlp-people"], ["nlp"])
    assert (reply["kind"], reply["admin"]) == ("user", False)


def test_a_hub_admin_is_one_here(hub):
    reply = hub.ask(hub.token("root", OPEN, SUBMIT), "api/v1/whoami").json()

    assert (reply["name"], reply["admin"]) == ("root", True)


def test_a_token_without_the_scope_of_the_service_stays_outside(hub):
    reply = hub.ask(hub.token("ana", SUBMIT), "api/v1/workloads")

    assert (reply.status_code, reply.json()["code"]) == (403, "missing_scope")
    assert OPEN in reply.json()["detail"]


def test_a_token_without_the_submit_scope_reads_but_changes_nothing(hub):
    token = hub.token("ana", OPEN)
    job = {"command": ["true"], "name": "reads-only"}
    refused = hub.ask(token, "api/v1/workloads", "POST", json=job)

    assert hub.ask(token, "api/v1/workloads").status_code == httpx.codes.OK
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")


def test_a_job_is_submitted_with_a_token_that_has_both(hub):
    token = hub.token("ana", OPEN, SUBMIT)
    reply = hub.ask(token, "api/v1/workloads", "POST", json={"command": ["true"], "name": "exp1"})

    assert reply.status_code == httpx.codes.CREATED
    assert reply.json()["workloads"][0]["id"] == "vision/exp1"
    assert reply.json()["workloads"][0]["user"] == "ana"


def test_a_service_that_bears_a_users_name_is_not_that_user(hub):
    reply = hub.ask(IMPOSTOR, "api/v1/whoami")

    assert (reply.status_code, reply.json()["code"]) == (403, "not_a_user")


def test_an_unknown_token_is_refused_without_being_repeated(hub):
    reply = hub.ask("no-token-of-this-hub", "api/v1/whoami")

    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert "no-token-of-this-hub" not in reply.text


def test_a_revoked_token_opens_nothing_any_more(hub):
    token = hub.token("ana", OPEN, SUBMIT)
    with hub.admin as http:
        tokens = http.get("/hub/api/users/ana/tokens").json()["api_tokens"]
        newest = max(tokens, key=lambda one: one["created"])
        http.delete(f"/hub/api/users/ana/tokens/{newest['id']}")

    assert hub.ask(token, "api/v1/whoami").status_code == httpx.codes.UNAUTHORIZED
    assert KEEP_S <= 60  # one that was used just before lives no longer than this


def test_the_hub_process_submits_for_a_user_in_that_users_groups(hub):
    hub.token("nel")
    session = {"kind": "session", "owner": "nel", "name": "lab-nel", "gpus": 0.5}
    reply = hub.ask("hub-secret", "api/v1/workloads", "POST", json=session)
    refused = hub.ask(
        "hub-secret", "api/v1/workloads", "POST", json={**session, "owner": "nobody-here"}
    )

    assert reply.json()["workloads"][0]["id"] == "nlp/lab-nel"
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


def test_the_hub_tells_which_servers_there_are_those_under_way_included(hub):
    with hub.admin as http:
        for name, server in (("ana", ""), ("zoe", "big")):
            http.post(f"/hub/api/users/{name}")
            http.post(f"/hub/api/users/{name}/servers/{server}")

    settings = Config.from_environment(
        {
            "RUNAI_DATA_DIR": "/unused",
            "RUNAI_HUB_TOKEN": "unused",
            "JUPYTERHUB_API_URL": f"{hub.url}/hub/api",
            "JUPYTERHUB_API_TOKEN": READER,
        }
    )

    async def ask() -> dict[str, set[str]]:
        assert settings.hub is not None
        users = HubAuthenticator(settings.hub, prefix=ROOT, secret="unused")
        try:
            return {name: set(servers) for name, servers in (await users.servers()).items()}
        finally:
            await users.close()

    assert asyncio.run(ask()) == {"ana": {""}, "zoe": {"big"}}
    with hub.admin as http:
        http.delete("/hub/api/users/ana/server")
        http.delete("/hub/api/users/zoe/servers/big")


# -- the page ------------------------------------------------------------------------------------


@pytest.fixture
def browser(hub) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hub.url, follow_redirects=True, timeout=30) as http:
        yield http


def log_in(browser: httpx.Client, name: str = "ana") -> httpx.Response:
    """Open the page, as a browser does: it leads to the hub's form and back."""
    form = browser.get(ROOT)
    assert form.url.path == "/hub/login"
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', form.text)
    assert xsrf is not None
    fields = {"username": name, "password": PASSWORD, "_xsrf": xsrf[1]}
    return browser.post(str(form.url), data=fields)


def login_cookies(browser: httpx.Client) -> dict[str, Any]:
    return {c.name: c for c in browser.cookies.jar if c.path == ROOT}


def test_the_page_opens_after_the_hubs_login(browser):
    page = log_in(browser)

    assert (page.status_code, page.url.path) == (200, ROOT)
    assert '<p class="user">ana</p>' in page.text
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    cookie = login_cookies(browser)["service-runai"]
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "lax"


def test_the_login_uses_a_state_and_a_challenge(hub):
    with httpx.Client(base_url=hub.url) as http:
        redirect = http.get(f"{ROOT}login")
    query = parse_qs(urlsplit(redirect.headers["location"]).query)

    assert {"state", "code_challenge", "code_challenge_method"} <= query.keys()
    assert query["code_challenge_method"] == ["S256"]


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example/", "/services/runai/..//evil", "/hub/"]
)
def test_the_login_leads_to_no_other_place(browser, elsewhere):
    log_in(browser)
    page = browser.get(f"{ROOT}login", params={"next": elsewhere})

    assert (page.status_code, page.url.path) == (200, ROOT)


def test_a_login_that_another_browser_began_is_refused(hub, browser):
    log_in(browser)
    with httpx.Client(base_url=hub.url) as other:
        begun = other.get(f"{ROOT}login").headers["location"]
    # The victim's browser is sent to an address with the attacker's state.
    page = browser.get(begun)

    assert (page.status_code, page.json()["code"]) == (400, "login_failed")


JOB = {"command": ["true"], "project": "vision"}


def test_a_page_changes_something_only_with_its_origin_and_its_xsrf_token(hub, browser):
    log_in(browser)
    xsrf = login_cookies(browser)["_xsrf"].value
    workloads = f"{ROOT}api/v1/workloads"
    ours = {"Origin": hub.url}
    attempts = {
        "nothing": {},
        "origin alone": ours,
        "token alone": {"X-XSRFToken": xsrf},
        "another origin": {"Origin": "https://evil.example", "X-XSRFToken": xsrf},
        "another site": {"Sec-Fetch-Site": "cross-site", **ours, "X-XSRFToken": xsrf},
        "a wrong token": {**ours, "X-XSRFToken": "0" * 64},
        "both": {**ours, "X-XSRFToken": xsrf},
        "both, by the browser's word": {"Sec-Fetch-Site": "same-origin", "X-XSRFToken": xsrf},
    }
    outcomes = {
        name: browser.post(workloads, json=JOB, headers=headers).json().get("code", "done")
        for name, headers in attempts.items()
    }

    assert outcomes == {
        "nothing": "cross_site",
        "origin alone": "xsrf",
        "token alone": "cross_site",
        "another origin": "cross_site",
        "another site": "cross_site",
        "a wrong token": "xsrf",
        "both": "done",
        "both, by the browser's word": "done",
    }


def test_a_page_of_the_platform_learns_its_xsrf_token_from_whoami(browser):
    log_in(browser)
    reply = browser.get(f"{ROOT}api/v1/whoami")

    assert reply.json()["name"] == "ana"
    assert reply.headers["X-XSRFToken"] == login_cookies(browser)["_xsrf"].value


def test_a_cookie_that_somebody_has_changed_is_no_login(hub, browser):
    log_in(browser)
    cookie = login_cookies(browser)["service-runai"]
    forged = cookie.value.rsplit("|", 1)[0] + "|" + "0" * 64
    with httpx.Client(base_url=hub.url, cookies={cookie.name: forged}) as forger:
        reply = forger.get(f"{ROOT}api/v1/whoami")

    assert reply.status_code == httpx.codes.UNAUTHORIZED
