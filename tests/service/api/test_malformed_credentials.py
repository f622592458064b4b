"""Odd credentials of a browser or a program: accepted or refused, never answered by a 5xx.

The application runs with the real authenticator, which asks a real JupyterHub.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tornado.web import create_signed_value

from hub_platform import SERVICE_PATH, HubPlatform
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import xsrf_token
from users_hub import READER_TOKEN

pytestmark = [pytest.mark.hub]

LOGIN_COOKIE, STATE_COOKIE = "service-runai", "service-runai-oauth-state"
JOB = {"command": ["true"], "project": "vision"}

MALFORMED_VALUES = {
    "empty": b"",
    "no UTF-8": b"\xe9",
    "an open bracket": b"http://[",
    "a port without a number": b"http://h:port",
    "a digit that is no ASCII": b"2|1:0|1:\xb2|9:x|",
}
"""Odd header values that a server passes on to an application."""


@pytest.fixture
def hub(real_hub: HubPlatform) -> HubPlatform:
    return real_hub


@dataclass
class LoggedInApp:
    """The application and the headers that a logged-in browser sends."""

    http: httpx.AsyncClient
    login: str
    xsrf: str


@pytest.fixture
async def logged_in_app(
    hub: HubPlatform, simulated, make_authenticator
) -> AsyncIterator[LoggedInApp]:
    users = make_authenticator(f"{hub.url}/hub/api", READER_TOKEN)
    simulated.platform.authenticator = users
    token = hub.token("ana")
    signed = create_signed_value(users._secret, LOGIN_COOKIE, token).decode()
    # An exception of the application is raised here, with its traceback.
    app = httpx.ASGITransport(create_app(simulated.platform, login=users))
    async with httpx.AsyncClient(
        transport=app, base_url=f"http://hub.example{SERVICE_PATH}"
    ) as http:
        yield LoggedInApp(http, f"{LOGIN_COOKIE}={signed}", xsrf_token(users._secret, token))


@pytest.mark.parametrize("parameter", ["state", "code"])
async def test_login_with_a_malformed_oauth_callback_fails(logged_in_app, parameter):
    begun = await logged_in_app.http.get("login")
    logged_in_app.http.cookies.clear()
    cookie = begun.headers["Set-Cookie"].partition(";")[0]
    state = httpx.URL(begun.headers["Location"]).params["state"]
    outcomes = {}
    for name, value in MALFORMED_VALUES.items():
        parameters = {"code": b"x", "state": state.encode(), parameter: value}
        query = "&".join(f"{key}={_escaped(each)}" for key, each in parameters.items())
        reply = await logged_in_app.http.get(f"oauth_callback?{query}", headers={"Cookie": cookie})
        outcomes[name] = (reply.status_code, reply.json()["code"])

    assert outcomes == dict.fromkeys(MALFORMED_VALUES, (400, "login_failed"))


def _escaped(value: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in value)


@pytest.mark.parametrize(
    ("name", "refused"),
    [("Origin", "cross_site"), ("X-Forwarded-Host", "cross_site"), ("X-XSRFToken", "xsrf")],
)
async def test_submission_with_malformed_origin_or_xsrf_token_is_refused(
    logged_in_app, name, refused
):
    outcomes = {}
    for value_name, value in MALFORMED_VALUES.items():
        headers: dict[str, str | bytes] = {
            "Cookie": logged_in_app.login,
            "Origin": "http://hub.example",
            "X-XSRFToken": logged_in_app.xsrf,
            name: value,
        }
        reply = await logged_in_app.http.post(
            "api/v1/workloads", json=JOB, headers=[*headers.items()]
        )
        outcomes[value_name] = (reply.status_code, reply.json().get("code"))

    expected: dict[str, Any] = dict.fromkeys(MALFORMED_VALUES, (403, refused))
    if name == "X-Forwarded-Host":  # an empty one is ignored: the Host is used
        expected["empty"] = (201, None)
    assert outcomes == expected


ANONYMOUS_REQUESTS = {"api/v1/whoami": 401, "": 302, "login": 302, "oauth_callback?code=x": 400}
"""Requests without credentials, and their status."""


@pytest.mark.parametrize(
    ("header", "prefix"),
    [
        ("Cookie", f"{LOGIN_COOKIE}="),
        ("Cookie", f"{STATE_COOKIE}="),
        ("Cookie", "odd="),
        ("Authorization", ""),
        ("Authorization", "Bearer "),
        ("Authorization", "token "),
    ],
)
async def test_malformed_cookie_or_token_identifies_no_user(logged_in_app, header, prefix):
    replies = {
        (path, name): (
            await logged_in_app.http.get(path, headers=[(header, prefix.encode() + value)])
        )
        for path in ANONYMOUS_REQUESTS
        for name, value in MALFORMED_VALUES.items()
    }

    expected = {
        (path, name): ANONYMOUS_REQUESTS[path]
        for path in ANONYMOUS_REQUESTS
        for name in MALFORMED_VALUES
    }
    assert {key: reply.status_code for key, reply in replies.items()} == expected


@pytest.mark.parametrize("name", ["Referer", "X-Forwarded-Proto", "User-Agent", "Host"])
async def test_malformed_non_credential_headers_change_no_reply_status(logged_in_app, name):
    statuses = {}
    for value_name, value in MALFORMED_VALUES.items():
        headers = [("Cookie", logged_in_app.login), (name, value)]
        paths = ("api/v1/whoami", "login", f"login?next={_escaped(value)}")
        replies = [await logged_in_app.http.get(path, headers=headers) for path in paths]
        statuses[value_name] = [reply.status_code for reply in replies]

    assert statuses == {value_name: [200, 302, 302] for value_name in MALFORMED_VALUES}
