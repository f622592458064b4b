"""A platform on a real JupyterHub with one of each role, for tests of who may do what.

Each has a token; those who have a browser are logged in, too. Called by tests with the marker hub.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from authz import ACTORS, READERS, ROWS, USERS, expected
from users_hub import (
    ADMIN,
    HUB_TOKEN,
    NODE,
    NODE_TOKEN,
    OPEN,
    READER,
    ROOT,
    SIMULATED,
    SUBMIT,
    Hub,
    log_in,
    login_cookies,
    users_hub,
)
from waiting import eventually

__all__ = ["BUTTONS", "WITH_COOKIES", "Stage", "may_press", "users_stage"]

PROJECTS = """
projects:
  vision: {quota: 2.5, limit: 4, members: [ana, mia, ro], admins: [vic]}
  nlp: {quota: 2.5, groups: [nlp-people]}
  spare: {quota: 0}
"""
WITH_COOKIES = ("owner", "member", "project admin", "admin", "outsider")

_WORKLOAD = "/api/v1/workloads/{project}/{name}"
BUTTONS = {
    **{
        act: f"POST {_WORKLOAD}/{act}"
        for act in ("suspend", "resume", "scale", "keep", "release", "regain")
    },
    "": f"DELETE {_WORKLOAD}",
}
"""What can be done with a workload on a page, and the route of each in the table."""


@dataclass
class Stage:
    """A platform with a running job of ana's, a session, and a project to spare."""

    hub: Hub
    tokens: dict[str, str]
    process: int
    """One that a session may be said to be."""
    clients: dict[str, httpx.Client] = field(default_factory=dict)
    """One for each token, and one for nobody: making one takes longer than asking."""
    cookies: dict[str, httpx.Client] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, Any]:
        return {"node": NODE, "pid": self.process}

    def ask(self, role: str, **request: Any) -> httpx.Response:
        return self.clients[role].request(**request)

    def set(self) -> None:
        """Put back what an actor has taken away."""
        people: dict[str, Any] = {"members": ["ana", "mia", "ro"], "admins": ["vic"]}
        for name, fields in (("vision", {**people, "quota": 2.5, "limit": 4}), ("spare", {})):
            self.ask("admin", method="PUT", url=f"api/v1/projects/{name}", json=fields)
        self.ask("admin", method="DELETE", url="api/v1/projects/new")
        self._have("exp1", "owner", {"command": ["sleep", "600"]})
        self._have("lab", "hub", {"kind": "session", "owner": "ana"})
        found = self._state("exp1")
        if found == "suspended":
            self.ask("owner", method="POST", url="api/v1/workloads/vision/exp1/resume")

    def offered(self, page: str, workload: str, *acts: str) -> dict[str, AbstractSet[str]]:
        """Return what each role may do with a workload, once a hub admin may do all of these."""
        shown = re.compile(rf'<button[^>]*data-path="workloads/{workload}(?:/(\w+))?"')

        def read(role: str) -> AbstractSet[str]:
            return set(shown.findall(self.cookies[role].get(f"{ROOT}{page}").text))

        eventually(lambda: read("admin") == {*acts}, within=180, what=f"{acts} are there")
        return {role: read(role) for role in WITH_COOKIES}

    def _have(self, name: str, role: str, fields: dict[str, Any]) -> None:
        if self._state(name) in {"stopping", "ended", "failed", "succeeded"}:
            self.ask("hub", method="DELETE", url=f"api/v1/workloads/vision/{name}")
            eventually(lambda: not self._state(name), within=60, what=f"{name} is gone")
        if not self._state(name):
            body = {"project": "vision", "name": name, **fields}
            self.ask(role, method="POST", url="api/v1/workloads", json=body).raise_for_status()

    def _state(self, name: str) -> str:
        reply = self.ask("hub", method="GET", url=f"api/v1/workloads/vision/{name}")
        return str(reply.json()["state"]) if reply.is_success else ""


def may_press(*acts: str) -> dict[str, set[str]]:
    """Return what the table lets each role do, of these."""
    rows = {row["route"]: row for row in ROWS}
    return {
        role: {act for act in acts if expected(rows[BUTTONS[act]], role) == "let in"}
        for role in WITH_COOKIES
    }


@contextmanager
def users_stage(
    directory: Path, projects: str = PROJECTS, settings: Mapping[str, str] = SIMULATED
) -> Iterator[Stage]:
    """Have the platform, with its data in a directory, for as long as a `with` lasts."""
    with users_hub(directory, projects, settings) as hub, ExitStack() as opened:
        # A notebook's token opens the service and submits; a reader's only opens it.
        scopes = {role: [OPEN, SUBMIT] for role in USERS} | {role: [OPEN] for role in READERS}
        scopes["admin"] = [OPEN, SUBMIT, ADMIN]
        scopes["admin's reader"] = [OPEN, "admin:users"]
        tokens = {role: hub.token(ACTORS[role], *scopes[role]) for role in USERS}
        tokens |= {"hub": HUB_TOKEN, "agent": NODE_TOKEN, "service": READER}
        process = subprocess.Popen(["sleep", "600"])
        stage = Stage(hub, tokens, process.pid)
        for role in (*tokens, "nobody"):
            headers = {"Authorization": f"Bearer {tokens[role]}"} if role in tokens else {}
            client = httpx.Client(base_url=f"{hub.url}{ROOT}", headers=headers, timeout=60)
            stage.clients[role] = opened.enter_context(client)
        for role in WITH_COOKIES:
            browser = httpx.Client(base_url=hub.url, follow_redirects=True, timeout=60)
            log_in(opened.enter_context(browser), ACTORS[role])
            xsrf = login_cookies(browser)["_xsrf"].value
            # As the pages' own script sends them.
            browser.headers.update({"X-XSRFToken": xsrf, "Origin": hub.url})
            browser.follow_redirects = False
            stage.cookies[role] = browser
        try:
            yield stage
        finally:
            process.kill()
            process.wait()
            for name in ("exp1", "lab"):
                stage.ask("hub", method="DELETE", url=f"api/v1/workloads/vision/{name}")
