"""Admin rights on a real JupyterHub: by browser, by token and in an admin's notebook.

Only root is a hub admin; root and the deputy have a role with the service's own admin scope.
"""

from __future__ import annotations

import httpx
import pytest

from users_hub import ADMIN, OPEN, ROOT, SUBMIT, Hub

pytestmark = [pytest.mark.hub]


@pytest.fixture
def hub(real_hub: Hub) -> Hub:
    return real_hub


@pytest.mark.parametrize(
    ("user", "scopes", "admin"),
    [
        ("root", [ADMIN], True),
        ("root", ["admin:users"], True),
        ("root", ["admin-ui"], True),
        ("root", [], False),
        ("root", ["users:activity!user", "self"], False),
        ("deputy", [ADMIN], True),
        ("ana", [ADMIN], False),
        ("ana", ["admin-ui"], False),
    ],
)
def test_a_token_is_an_admins_if_it_says_so(hub, user, scopes, admin):
    """The hub issues no token with a scope that the user may not hand on."""
    made = hub.token_or_refusal(user, OPEN, SUBMIT, *scopes)
    reply = hub.ask(made, "api/v1/whoami") if made else None

    assert (reply is not None and reply.json()["admin"]) is admin


def test_an_admins_notebook_is_told_why_it_is_no_admins_and_the_way_out(hub):
    token = hub.token("root", OPEN, SUBMIT)
    job = {"command": ["true"], "project": "vision", "name": "of-ana"}
    hub.ask(hub.token("ana", OPEN, SUBMIT), "api/v1/workloads", "POST", json=job)
    asked = [
        hub.ask(token, "api/v1/projects/vision", "PUT", json={"quota": 9}),
        hub.ask(token, "api/v1/history?since=2026-01-01T00:00:00Z"),
        hub.ask(token, "api/v1/workloads/vision/of-ana", "DELETE"),
    ]
    allowed = hub.ask(
        hub.token("root", OPEN, SUBMIT, ADMIN), "api/v1/workloads/vision/of-ana", "DELETE"
    )

    assert [(r.status_code, r.json()["code"]) for r in asked] == [
        (403, "missing_scope"),
        (403, "missing_scope"),
        (404, "not_found"),
    ]
    assert ADMIN in asked[0].json()["detail"]
    assert "runai login" in asked[0].json()["hint"]
    assert allowed.is_success


def test_a_notebooks_token_is_no_login_of_the_pages(hub):
    """A login with it would turn an admin's notebook into an admin's browser."""
    notebooks = {"Authorization": f"token {hub.token('root', OPEN, SUBMIT)}"}
    with httpx.Client(
        base_url=hub.url, follow_redirects=True, timeout=60, headers=notebooks
    ) as browser:
        arrived = browser.get(f"{ROOT}login")
        del browser.headers["Authorization"]
        known = browser.get(f"{ROOT}api/v1/whoami")

    assert (arrived.url.path, known.status_code) == ("/hub/login", 401)
