"""Each row of the permission table, tests/authz.yaml, is a test for every role.

Only this file plays the whole table: the tests on a JupyterHub and on Kubernetes play the rows
that show how a caller is identified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from authz import (
    ACTORS,
    FORMER,
    FORMERS_WORKLOADS,
    ROWS,
    TABLE,
    actual_answer,
    expected,
    name_of,
    request_arguments,
    token_name,
)
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.permissions import Action, Actor, authorise
from runai.hub_service.api.pages.templates import PAGES
from runai.hub_service.cli.commands.projects import project as project_group
from runai.hub_service.cli.framework.command_list import SECTIONS
from runai.hub_service.client import AsyncClient
from runai.hub_service.model.records import ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.widgets.magics import RunaiMagics


async def outcome(http: httpx.AsyncClient, row: dict[str, Any], role: str) -> str:
    token = "fin" if role == FORMER else token_name(role) if role in ACTORS else ""
    headers = {"Authorization": f"Bearer {token}-token"} if token else {}
    name = row.get("path", {}).get("name")
    is_formers = role == FORMER and name in FORMERS_WORKLOADS
    places = {"name": FORMERS_WORKLOADS[name]} if is_formers else {}
    # Streams do not end: the status is enough.
    async with http.stream(**request_arguments(row, **places), headers=headers) as reply:
        return actual_answer(reply)


# The simulated platform has no JupyterHub for a login.
ROWS_WITHOUT_LOGIN = [
    row for row in ROWS if row["route"] not in {"GET /login", "GET /oauth_callback"}
]


@pytest.mark.parametrize("row", ROWS_WITHOUT_LOGIN, ids=name_of)
async def test_api_route_answers_every_role_as_the_permission_table_says(stage, row):
    outcomes = {}
    async with stage.served.http() as http:
        for role in (*ACTORS, FORMER, "nobody"):
            outcomes[role] = await outcome(http, row, role)
            if not row["route"].startswith("GET "):
                await stage.restore()

    assert outcomes == {role: expected(row, role) for role in outcomes}


def served_routes(routes: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """Yield every route of an application, undocumented routes included."""
    for route in routes:
        below = getattr(route, "original_router", None) or getattr(route, "app", None)
        context = getattr(route, "include_context", None)
        if methods := getattr(route, "methods", None):
            yield from (f"{method} {prefix}{route.path}" for method in methods - {"HEAD"})
        elif below is not None:
            ahead = getattr(context, "prefix", "") or getattr(route, "path", "")
            yield from served_routes(below.routes, prefix + ahead)


class NoLogin:
    """A login that no caller passes."""

    async def begin_login(self, request, next_path):
        raise NotImplementedError

    async def finish_login(self, request):
        raise NotImplementedError


def test_every_route_of_api_and_pages_is_in_the_permission_table():
    platform: Any = SimpleNamespace(prefix="/", version="test")
    served = set(served_routes(create_app(platform, login=NoLogin()).routes))

    assert "GET /api/v1/openapi.json" in served
    assert {route.replace(":path", "") for route in served} == {row["route"] for row in ROWS}


NAMED = {named for row in ROWS for named in row.get("by", ())}


def test_every_cli_command_is_in_the_permission_table():
    commands = {f"runai {name}" for section in SECTIONS.values() for name in section}
    groups = {"runai project": project_group}
    for group, commands_of in groups.items():
        commands = commands - {group} | {f"{group} {name}" for name in commands_of.commands}
    commands_in_rows = {c for c in commands if any(n == c or n.startswith(f"{c} ") for n in NAMED)}

    assert commands - commands_in_rows - set(TABLE["asks_nothing"]) == set()
    routes = {row["route"] for row in ROWS}
    assert {
        route for command_routes in TABLE["asks_nothing"].values() for route in command_routes
    } <= routes


def test_every_notebook_magic_is_in_the_permission_table():
    magics = {f"%{name}" for name in RunaiMagics.magics["line"]}
    magics |= {f"%%{name}" for name in RunaiMagics.magics["cell"] if f"%{name}" not in magics}

    assert magics == {named.split()[0] for named in NAMED if named.startswith("%")}


def test_every_page_button_is_in_the_permission_table():
    """One macro renders the action buttons, and each form has two of its own."""
    parts_html = (PAGES / "parts.html").read_text()
    labels = set(re.findall(r'action\("([^"]+)"', parts_html)) | {"Stop", "Delete"}
    for page in ("submit.html", "project.html"):
        labels |= set(re.findall(r"<button[^>]*>([^<]+)</button>", (PAGES / page).read_text()))
    named = {each.removeprefix("page: ").partition(" (")[0] for each in NAMED if "page: " in each}

    assert labels == named


@pytest.mark.parametrize(
    ("kind", "own_action"), [("agent", Action.REPORT), ("worker", Action.TRAIN)]
)
def test_agent_and_worker_tokens_permit_only_their_own_action(kind, own_action):
    authorise(Actor("box", kind), own_action)
    for action in {*Action} - {own_action}:
        with pytest.raises(RunaiError) as refused:
            authorise(Actor("box", kind), action, ProjectSpec("vision", members=("box",)))
        assert str(refused.value).count(".") == 1, action


@dataclass
class SimulatedStage:
    """A platform with a running job of ana's, a granted session, and a project to spare."""

    served: Any
    hub: AsyncClient

    async def restore(self) -> None:
        """Restore what an actor has removed."""
        cluster = self.served.platform.cluster
        for spec in (
            ProjectSpec("vision", members=("ana", "mia", "ro"), admins=("vic",)),
            ProjectSpec("spare"),
        ):
            await cluster.put_project(spec)
        known = {w.id: w for w in await cluster.workloads()}
        await self._set_former(known)
        if "vision/exp1" in known and known["vision/exp1"].state == "suspended":
            await cluster.resume("vision/exp1", by="the test")
        for name, kind, command in (("exp1", "job", ["true"]), ("lab", "session", None)):
            if f"vision/{name}" not in known:
                fields = {"command": command} if command else {}
                await self.hub.submit(
                    SubmitRequest(name=name, kind=kind, owner="ana", project="vision", **fields)
                )

    async def _set_former(self, known: Mapping[str, WorkloadRecord]) -> None:
        """Restore fin's workloads in vision, of which fin is no member any more."""
        cluster = self.served.platform.cluster
        job = WorkloadSpec("vision", "past", "fin", "job", ("true",))
        lab = WorkloadSpec("vision", "past-lab", "fin", "session", None)
        await cluster.submit([spec for spec in (job, lab) if spec.id not in known])


@pytest.fixture
async def stage(simulated) -> SimulatedStage:
    stage = SimulatedStage(simulated, await simulated.client("hub"))
    await stage.restore()
    return stage
