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
from runai.embedded.needed_settings import SettingsCompletion, check_file, completed
from runai.embedded.settings import Settings
from runai.hub_service.wire.errors import InvalidRequest
from runai.spawner.local import RunaiLocalSpawner

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    return configuration(Settings(tmp_path, simulate=1), directory)


class Mine(RunaiLocalSpawner):
    """A spawner that an admin's file defines."""


def with_file(ours: Any, text: str) -> tuple[Any, SettingsCompletion]:
    """Return the configuration of a hub with this admin's file, and its completion."""
    file: Any = Config()
    exec(text, {"c": file, "sys": sys})
    check_file(ours, file)
    chosen: Any = deepcopy(ours)
    chosen.merge(file)
    done = completed(ours, chosen, Mine.section_names())
    chosen.merge(done.config)
    return chosen, done


def servers_settings(made: Any) -> Any:
    """Return the settings of a server as traitlets merges its spawner's sections."""
    merged: Any = Config()
    for section in Mine.section_names():
        merged.merge(deepcopy(made.get(section, Config())))
    return merged


def named(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


REPLACING = {
    "services": "c.JupyterHub.services = [{'name': 'mine', 'command': ['x']}]",
    "no services": "c.JupyterHub.services = []",
    "roles": "c.JupyterHub.load_roles = [{'name': 'mine', 'scopes': ['list:users']}]",
    "a role of ours": "c.JupyterHub.load_roles = [{'name': 'user', 'scopes': ['self']}]",
    "a role of no service": "c.JupyterHub.load_roles = [{'name': 'runai-service', 'services': []}]",
    "another role of our name": "c.JupyterHub.load_roles.append({'name': 'user', 'scopes': ()})",
    "a service of ours": "c.JupyterHub.services = [{'name': 'runai', 'display': False}]",
    "scopes": "c.JupyterHub.custom_scopes = {'custom:mine': {'description': 'Mine.'}}",
    **{
        f"scopes of {section}": f"c.{section}.server_token_scopes = ('access:servers!server',)"
        for section in ("Spawner", "LocalProcessSpawner", "RunaiLocalSpawner", "Mine")
    },
    **{
        f"environment of {section}": f"c.{section}.environment = {{'MINE': '1'}}"
        for section in ("Spawner", "LocalProcessSpawner", "RunaiLocalSpawner", "Mine")
    },
    "replaced, then changed": (
        "c.Spawner.environment = {'MINE': '1'}; c.Mine.environment.update({'YOURS': '2'})"
    ),
}
ADDING = {
    "services": "c.JupyterHub.services.append({'name': 'mine', 'command': ['x']})",
    "more services": "c.JupyterHub.services.extend([{'name': 'mine', 'command': ['x']}])",
    "a first service": "c.JupyterHub.services.insert(0, {'name': 'mine', 'command': ['x']})",
    "roles": "c.JupyterHub.load_roles.append({'name': 'mine', 'scopes': ['list:users']})",
    "scopes": "c.JupyterHub.custom_scopes.update({'custom:mine': {'description': 'Mine.'}})",
    "environment": "c.Spawner.environment.update({'MINE': '1'})",
    "environment of our spawner": "c.RunaiLocalSpawner.environment.update({'MINE': '1'})",
    "environment of all": (
        "c.Spawner.environment.update({'A': '1'}); c.Mine.environment.update({'B': '1'})"
    ),
    "scopes of servers": "c.Spawner.server_token_scopes.append('list:users')",
    "scopes of our servers": "c.RunaiLocalSpawner.server_token_scopes.append('list:users')",
    "nothing": "c.RunaiLocalSpawner.environment; c.JupyterHub.services",
}


@pytest.mark.parametrize(
    "text",
    [*REPLACING.values(), *ADDING.values()],
    ids=[*REPLACING, *(f"more: {one}" for one in ADDING)],
)
def test_file_leaves_the_platform_complete(ours: Any, text: str):
    made, _ = with_file(ours, text)

    services, roles = named(made.JupyterHub.services), named(made.JupyterHub.load_roles)
    for service in ours.JupyterHub.services:
        assert services[service["name"]].keys() >= service.keys()
    for role in ours.JupyterHub.load_roles:
        assert set(roles[role["name"]]["scopes"]) >= set(role["scopes"])
        assert set(roles[role["name"]].get("services", [])) >= set(role.get("services", []))
    assert len(made.JupyterHub.services) == len(services)
    assert len(made.JupyterHub.load_roles) == len(roles)
    assert made.JupyterHub.custom_scopes.keys() >= ours.JupyterHub.custom_scopes.keys()
    servers = servers_settings(made)
    assert set(servers.server_token_scopes) >= set(ours.Spawner.server_token_scopes)
    assert servers.environment.keys() >= ours.Spawner.environment.keys()


@pytest.mark.parametrize("text", REPLACING.values(), ids=REPLACING)
def test_each_addition_is_recorded(ours: Any, text: str):
    assert with_file(ours, text)[1].added


@pytest.mark.parametrize("text", ADDING.values(), ids=ADDING)
def test_file_that_only_adds_needs_no_completion(ours: Any, text: str):
    assert with_file(ours, text)[1].added == []


def test_additions_of_the_file_arrive(ours: Any):
    made, _ = with_file(
        ours,
        "c.JupyterHub.services.append({'name': 'mine'})\n"
        "c.LocalProcessSpawner.environment.update({'A': '1'})\n"
        "c.RunaiLocalSpawner.environment.update({'B': '2'})\n"
        "c.RunaiLocalSpawner.server_token_scopes.append('list:users')",
    )

    servers = servers_settings(made)
    assert "mine" in named(made.JupyterHub.services)
    assert servers.environment == {**ours.Spawner.environment, "A": "1", "B": "2"}
    assert servers.server_token_scopes == [*ours.Spawner.server_token_scopes, "list:users"]


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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("JupyterHub.services", "= {'name': 'x'}"),
        ("JupyterHub.services", "= None"),
        ("JupyterHub.services", "= [None]"),
        ("JupyterHub.services", "= [{'command': ['x']}]"),
        ("JupyterHub.services", "= [{'name': ['x']}]"),
        ("JupyterHub.services", "= [{'name': 'runai', 'environment': None}]"),
        ("JupyterHub.services", ".append('x')"),
        ("JupyterHub.services", ".update({'name': 'x'})"),
        ("JupyterHub.load_roles", "= ['x']"),
        ("JupyterHub.load_roles", "= [{'name': 'user', 'scopes': None}]"),
        ("JupyterHub.load_roles", "= [{'name': 'user', 'scopes': 'self'}]"),
        ("JupyterHub.load_roles", ".extend([{'name': 'runai-service', 'services': 'x'}])"),
        ("JupyterHub.custom_scopes", "= ['x']"),
        ("JupyterHub.custom_scopes", "= {'custom:x': 'Mine.'}"),
        ("JupyterHub.custom_scopes", ".update(['x'])"),
        ("Spawner.server_token_scopes", "= lambda s: []"),
        ("Spawner.server_token_scopes", "= None"),
        ("LocalProcessSpawner.server_token_scopes", "= 'self'"),
        ("Spawner.environment", "= 'A=1'"),
        ("Spawner.environment", ".update({'A'})"),
        ("Spawner.environment", "= {'A': 5}"),
        ("RunaiLocalSpawner.environment", "= None"),
        ("RunaiLocalSpawner.environment", ".append('A=1')"),
        ("Mine.environment", "= [('A', '1')]"),
    ],
)
def test_setting_that_cannot_be_completed_is_refused_by_name(ours: Any, setting: str, value: str):
    sentence = re.escape(f"c.{setting} in jupyterhub_config.py")
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        with_file(ours, f"c.{setting} {value}" if value[0] == "=" else f"c.{setting}{value}")
    assert refused.value.hint.startswith(f"Write c.{setting} = ")


def test_documented_lines_of_the_culler_leave_the_platform_complete(ours: Any):
    block = r"```python\n(import sys\n\nc\.JupyterHub\.load_roles.*?)```"
    (lines,) = re.findall(block, PAGE.read_text(), re.DOTALL)
    made, _ = with_file(ours, lines)

    services, roles = named(made.JupyterHub.services), named(made.JupyterHub.load_roles)
    assert {"runai", "runai-removals", "jupyterhub-idle-culler-service"} <= services.keys()
    culler = roles["jupyterhub-idle-culler-role"]
    assert culler["services"] == ["jupyterhub-idle-culler-service"]
    assert "runai-service" in roles
