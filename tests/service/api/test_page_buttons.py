"""A workload's buttons on the pages, by state and role, match the permission table."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from authz import ROWS, USERS, expected, token_name
from runai.hub_service.api.pages.templates import templates
from runai.hub_service.wire.schemas import ElasticView, IdleView
from runai.hub_service.wire.workload_request import SubmitRequest

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
IDLE = IdleView(since=AT, text="idle", keeps_left=1, releasable=True)
ELASTIC = ElasticView(workers=3, least=1, training=3, most=4, text="")

STATES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "running": ({"state": "running"}, {"Suspend", "Stop"}),
    "paused": ({"state": "paused"}, {"Suspend", "Stop"}),
    "suspended": ({"state": "suspended"}, {"Resume", "Stop"}),
    "finished": ({"state": "succeeded", "finished": AT}, {"Delete"}),
    "elastic": (
        {"state": "running", "elastic": ELASTIC},
        {"Suspend", "Add a worker", "Remove a worker", "Stop"},
    ),
    "idle": (
        {"state": "running", "kind": "session", "idle": IDLE},
        {"Keep 30 more minutes", "Give GPU back", "Stop"},
    ),
    "released": (
        {"state": "running", "kind": "session", "released": True},
        {"Get GPU back", "Stop"},
    ),
}
BUTTON = re.compile(r"<button[^>]*>([^<]+)<")


def button_rows() -> dict[str, dict[str, Any]]:
    """Return the permission table's row for each button that acts on a workload."""
    return {
        entry.removeprefix("page: "): row
        for row in ROWS
        if "/workloads/{project}/{name}" in row["route"]
        for entry in row.get("by", ())
        if entry.startswith("page: ")
    }


def test_every_button_of_the_permission_table_appears_in_a_workload_state():
    assert {button for _, buttons in STATES.values() for button in buttons} == button_rows().keys()


@pytest.mark.parametrize("state", STATES)
async def test_workload_actions_show_buttons_only_to_permitted_roles(simulated, state):
    owner = await simulated.client("ana")
    await owner.submit(SubmitRequest(name="exp1", project="vision", command=["train"], gpus=1))
    change, buttons = STATES[state]
    for role in USERS:
        client = await simulated.client(token_name(role))
        listed = [view.model_copy(update=change) for view in await client.workloads()]
        parts: Any = templates("/").get_template("parts.html").module
        html = "".join(parts.actions(view) for view in listed)

        permitted_buttons = {
            button for button in buttons if expected(button_rows()[button], role) == "let in"
        }
        assert set(BUTTON.findall(html)) == permitted_buttons, role
