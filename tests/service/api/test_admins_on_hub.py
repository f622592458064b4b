"""Admin rights on a real JupyterHub: by browser, by token and in an admin's notebook.

Only root is a hub admin; root and the deputy have a role with the service's own admin scope.
"""

from __future__ import annotations

import httpx
import pytest

from hub_platform import ACCESS_SCOPE, SERVICE_PATH, SUBMIT_SCOPE, HubPlatform
from users_hub import ADMIN_SCOPE

pytestmark = [pytest.mark.hub]


@pytest.fixture
def hub(real_hub: HubPlatform) -> HubPlatform:
    return real_hub


@pytest.mark.parametrize(
    ("user", "scopes", "admin"),
    [
        ("root", [ADMIN_SCOPE], True),
        ("root", ["admin:users"], True),
        ("root", ["admin-ui"], True),
        ("root", [], False),
        ("root", ["users:activity!user", "self"], False),
        ("deputy", [ADMIN_SCOPE], True),
        ("ana", [ADMIN_SCOPE], False),
        ("ana", ["admin-ui"], False),
    ],
)
def test_token_has_admin_rights_only_with_an_admin_scope(hub, user, scopes, admin):
    """The hub issues no token with a scope that the user may not hand on."""
    hub.token(user)
    answer = hub.request_token(user, ACCESS_SCOPE, SUBMIT_SCOPE, *scopes)
    token = answer.json().get("token")

    assert bool(token and hub.call_service(token, "api/v1/whoami").json()["admin"]) is admin


def test_admins_token_without_admin_scope_is_refused_with_a_login_hint(hub):
    token = hub.token("root")
    job = {"command": ["true"], "project": "vision", "name": "of-ana"}
    hub.call_service(hub.token("ana"), "api/v1/workloads", "POST", json=job)
    replies = [
        hub.call_service(token, "api/v1/projects/vision", "PUT", json={"quota": 9}),
        hub.call_service(token, "api/v1/history?since=2026-01-01T00:00:00Z"),
        hub.call_service(token, "api/v1/workloads/vision/of-ana", "DELETE"),
    ]
    allowed = hub.call_service(
        hub.token("root", ACCESS_SCOPE, SUBMIT_SCOPE, ADMIN_SCOPE),
        "api/v1/workloads/vision/of-ana",
        "DELETE",
    )

    assert [(r.status_code, r.json()["code"]) for r in replies] == [
        (403, "missing_scope"),
        (403, "missing_scope"),
        (404, "not_found"),
    ]
    assert ADMIN_SCOPE in replies[0].json()["detail"]
    assert "runai login" in replies[0].json()["hint"]
    assert allowed.is_success


def test_notebook_token_does_not_log_a_browser_in(hub):
    """A login with it would turn an admin's notebook into an admin's browser."""
    notebook_headers = {"Authorization": f"token {hub.token('root')}"}
    with httpx.Client(
        base_url=hub.url, follow_redirects=True, timeout=60, headers=notebook_headers
    ) as browser:
        landing_page = browser.get(f"{SERVICE_PATH}login")
        del browser.headers["Authorization"]
        whoami = browser.get(f"{SERVICE_PATH}api/v1/whoami")

    assert (landing_page.url.path, whoami.status_code) == ("/hub/login", 401)
