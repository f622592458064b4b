"""tests/authz.yaml is the table of who may do what; each of its rows is a test for every role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from runai.hub_service.api.permissions import Action, Actor, authorise
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.client import AsyncClient
from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.errors import RunaiError

ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "authz.yaml").read_text())

ACTORS = {
    "owner": "ana",
    "member": "mia",
    "reader": "ro",
    "project admin": "vic",
    "admin": "root",
    "outsider": "nel",
    "hub": "hub",
    "agent": "agent",
}
USERS = {"owner", "member", "reader", "project admin", "admin", "outsider"}


def let_in(row: dict[str, Any]) -> set[str]:
    who = set(ACTORS) if row["who"] == "anybody" else set(row["who"])
    return who | USERS if "user" in who else who


def name_of(row: dict[str, Any]) -> str:
    said = {**row.get("path", {}), **row.get("query", {}), **row.get("body", {})}
    return " ".join([row["route"], *(f"{k}={v}" for k, v in said.items() if v)])


def expected(row: dict[str, Any], role: str) -> str:
    if role == "nobody":
        if row["who"] == "anybody":
            return "let in"
        return "sent to the login" if row.get("page") else "401"
    if role in let_in(row):
        return "let in"
    if role in row.get("asked", ()):
        return "400"
    return "404" if role in row.get("hidden", ()) else "403"


async def outcome(url: str, row: dict[str, Any], role: str) -> str:
    headers = {"Authorization": f"Bearer {ACTORS[role]}-token"} if role in ACTORS else {}
    method, path = row["route"].split()
    path = path.format(**row.get("path", {})).lstrip("/")
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, verify=False) as http,
        # Streams have no end: the status says enough.
        http.stream(method, path, json=row.get("body"), params=row.get("query")) as reply,
    ):
        if reply.status_code == httpx.codes.FOUND and "/login" in reply.headers["location"]:
            return "sent to the login"
        # 409: let in, but the workload is not in the state for it.
        refused = reply.status_code in {400, 401, 403, 404, 405, 422}
        return str(reply.status_code) if refused or reply.status_code >= 500 else "let in"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
async def test_the_table_holds(stage, row):
    outcomes = {}
    for role in (*ACTORS, "nobody"):
        await stage.set()
        outcomes[role] = await outcome(stage.url, row, role)

    assert outcomes == {role: expected(row, role) for role in outcomes}


async def test_every_route_has_its_row(stage):
    async with httpx.AsyncClient(base_url=stage.url) as http:
        document = (await http.get("api/v1/openapi.json")).json()
    routes = {
        f"{method.upper()} {path.removeprefix('/services/runai')}"
        for path, methods in document["paths"].items()
        for method in methods
    }

    assert routes - {row["route"] for row in ROWS} == set()


@pytest.mark.parametrize("action", Action)
def test_no_action_is_open_to_an_agent_but_its_own(action):
    if action is Action.REPORT:
        return
    with pytest.raises(RunaiError) as refused:
        authorise(Actor("agent", "agent"), action, ProjectSpec("vision", members=("agent",)))
    assert str(refused.value).count(".") == 1


@dataclass
class Stage:
    """A platform with a running job of ana's, a granted session, and a project to spare."""

    served: Any
    hub: AsyncClient

    @property
    def url(self) -> str:
        return str(self.served.url)

    async def set(self) -> None:
        """Put back what an actor has taken away."""
        cluster = self.served.platform.cluster
        for spec in (
            ProjectSpec("vision", members=("ana", "mia", "ro"), admins=("vic",)),
            ProjectSpec("spare"),
        ):
            await cluster.put_project(spec)
        known = {w.id: w for w in await cluster.workloads()}
        if "vision/exp1" in known and known["vision/exp1"].state == "suspended":
            await cluster.resume("vision/exp1", by="the test")
        for name, kind, command in (("exp1", "job", ["true"]), ("lab", "session", None)):
            if f"vision/{name}" not in known:
                given = {"command": command} if command else {}
                await self.hub.submit(
                    SubmitRequest(name=name, kind=kind, owner="ana", project="vision", **given)
                )


@pytest.fixture
async def stage(simulated) -> Stage:
    stage = Stage(simulated, await simulated.client("hub"))
    await stage.set()
    return stage
