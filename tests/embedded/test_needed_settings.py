"""The platform keeps its settings whatever the admin's file assigns, and the file keeps its own."""

from __future__ import annotations

import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from runai.embedded.configuration import configuration
from runai.embedded.directory import DataDirectory
from runai.embedded.needed_settings import Completion, completed
from runai.embedded.settings import Settings
from runai.hub_service.wire.errors import InvalidRequest

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    return configuration(Settings(tmp_path, simulate=1), directory)


def with_file(ours: Any, text: str) -> tuple[Any, Completion]:
    """Return the configuration of a hub whose admin has this file, and what was completed."""
    file: Any = Config()
    exec(text, {"c": file, "sys": sys})
    chosen: Any = deepcopy(ours)
    chosen.merge(file)
    done = completed(ours, chosen)
    chosen.merge(done.config)
    return chosen, done


def named(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


REPLACING = {
    "services": "c.JupyterHub.services = [{'name': 'mine', 'command': ['x']}]",
    "no services": "c.JupyterHub.services = []",
    "roles": "c.JupyterHub.load_roles = [{'name': 'mine', 'scopes': ['list:users']}]",
    "a role of ours": "c.JupyterHub.load_roles = [{'name': 'user', 'scopes': ['self']}]",
    "a service of ours": "c.JupyterHub.services = [{'name': 'runai', 'display': False}]",
    "scopes": "c.JupyterHub.custom_scopes = {'custom:mine': {'description': 'Mine.'}}",
    "scopes of servers": "c.Spawner.server_token_scopes = ['users:activity!user']",
    "scopes of our servers": "c.RunaiLocalSpawner.server_token_scopes = ('access:servers!server',)",
    "environment": "c.Spawner.environment = {'MINE': '1'}",
    "additions": "c.JupyterHub.load_roles.append({'name': 'mine', 'scopes': ['list:users']})",
}


@pytest.mark.parametrize("text", REPLACING.values(), ids=REPLACING)
def test_file_that_replaces_a_setting_leaves_the_platform_complete(ours: Any, text: str):
    made, _ = with_file(ours, text)

    services, roles = named(made.JupyterHub.services), named(made.JupyterHub.load_roles)
    for service in ours.JupyterHub.services:
        assert services[service["name"]].keys() >= service.keys()
    for role in ours.JupyterHub.load_roles:
        assert set(roles[role["name"]]["scopes"]) >= set(role["scopes"])
    assert made.JupyterHub.custom_scopes.keys() >= ours.JupyterHub.custom_scopes.keys()
    for section in (made.Spawner, made.RunaiLocalSpawner):
        scopes = section.get("server_token_scopes", ours.Spawner.server_token_scopes)
        assert set(scopes) >= set(ours.Spawner.server_token_scopes)
    assert made.Spawner.environment.keys() >= ours.Spawner.environment.keys()


def test_file_keeps_what_it_says(ours: Any):
    made, done = with_file(
        ours,
        "c.JupyterHub.services = [{'name': 'runai', 'display': False, 'environment': {'A': '1'}}]\n"
        "c.JupyterHub.load_roles = [{'name': 'runai-admin', 'users': ['eve'], 'scopes': []}]\n"
        "c.Spawner.environment = {'JUPYTER_CONFIG_PATH': '/mine'}",
    )

    service = named(made.JupyterHub.services)["runai"]
    assert (service["display"], service["environment"]["A"]) == (False, "1")
    assert named(made.JupyterHub.load_roles)["runai-admin"]["users"] == ["eve"]
    assert made.Spawner.environment["JUPYTER_CONFIG_PATH"] == "/mine"
    assert "runai-removals to c.JupyterHub.services" in done.added


def test_file_that_only_adds_needs_no_completion(ours: Any):
    _, done = with_file(ours, "c.JupyterHub.services.append({'name': 'mine', 'command': ['x']})")

    assert done.added == []


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("c.JupyterHub.services = {'name': 'x'}", "JupyterHub.services"),
        ("c.JupyterHub.load_roles = ['x']", "JupyterHub.load_roles"),
        ("c.JupyterHub.custom_scopes = ['x']", "JupyterHub.custom_scopes"),
        ("c.Spawner.server_token_scopes = lambda s: []", "Spawner.server_token_scopes"),
        ("c.Spawner.environment = 'A=1'", "Spawner.environment"),
    ],
)
def test_setting_that_cannot_be_completed_is_refused_by_name(ours: Any, text: str, setting: str):
    with pytest.raises(InvalidRequest, match=re.escape(f"c.{setting} in jupyterhub_config.py")):
        with_file(ours, text)


def test_documented_lines_of_the_culler_leave_the_platform_complete(ours: Any):
    block = r"```python\n(import sys\n\nc\.JupyterHub\.load_roles.*?)```"
    (lines,) = re.findall(block, PAGE.read_text(), re.DOTALL)
    made, _ = with_file(ours, lines)

    services, roles = named(made.JupyterHub.services), named(made.JupyterHub.load_roles)
    assert {"runai", "runai-removals", "jupyterhub-idle-culler-service"} <= services.keys()
    culler = roles["jupyterhub-idle-culler-role"]
    assert culler["services"] == ["jupyterhub-idle-culler-service"]
    assert "runai-service" in roles
