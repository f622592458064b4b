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
from runai.embedded.data_directory import DataDirectory
from runai.embedded.settings import Settings
from runai.embedded.settings_completion import SettingsCompletion, check_file, completed
from runai.hub_service.wire.errors import InvalidRequest
from runai.spawner.local import RunaiLocalSpawner

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"


@pytest.fixture
def platform_config(tmp_path: Path) -> Any:
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    return configuration(Settings(tmp_path, simulate=1), directory)


class AdminSpawner(RunaiLocalSpawner):
    """A spawner that an admin's file defines."""


def config_with_file(platform_config: Any, file_text: str) -> tuple[Any, SettingsCompletion]:
    """Return the configuration of a hub with this admin's file, and its completion."""
    file: Any = Config()
    exec(file_text, {"c": file, "sys": sys})
    check_file(platform_config, file)
    chosen: Any = deepcopy(platform_config)
    chosen.merge(file)
    completion = completed(platform_config, chosen, AdminSpawner.section_names())
    chosen.merge(completion.config)
    return chosen, completion


def servers_settings(config: Any) -> Any:
    """Return the settings of a server as traitlets merges its spawner's sections."""
    merged: Any = Config()
    for section in AdminSpawner.section_names():
        merged.merge(deepcopy(config.get(section, Config())))
    return merged


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


REPLACING_FILES = {
    "services": "c.JupyterHub.services = [{'name': 'mine', 'command': ['x']}]",
    "no services": "c.JupyterHub.services = []",
    "roles": "c.JupyterHub.load_roles = [{'name': 'mine', 'scopes': ['list:users']}]",
    "platform role": "c.JupyterHub.load_roles = [{'name': 'user', 'scopes': ['self']}]",
    "role without service": "c.JupyterHub.load_roles = [{'name': 'runai-service', 'services': []}]",
    "role of the same name": "c.JupyterHub.load_roles.append({'name': 'user', 'scopes': ()})",
    "platform service": "c.JupyterHub.services = [{'name': 'runai', 'display': False}]",
    "scopes": "c.JupyterHub.custom_scopes = {'custom:mine': {'description': 'Mine.'}}",
    **{
        f"scopes of {section}": f"c.{section}.server_token_scopes = ('access:servers!server',)"
        for section in ("Spawner", "LocalProcessSpawner", "RunaiLocalSpawner", "AdminSpawner")
    },
    **{
        f"environment of {section}": f"c.{section}.environment = {{'MINE': '1'}}"
        for section in ("Spawner", "LocalProcessSpawner", "RunaiLocalSpawner", "AdminSpawner")
    },
    "replaced, then changed": (
        "c.Spawner.environment = {'MINE': '1'}; c.AdminSpawner.environment.update({'YOURS': '2'})"
    ),
}
ADDING_FILES = {
    "services": "c.JupyterHub.services.append({'name': 'mine', 'command': ['x']})",
    "list of services": "c.JupyterHub.services.extend([{'name': 'mine', 'command': ['x']}])",
    "first service": "c.JupyterHub.services.insert(0, {'name': 'mine', 'command': ['x']})",
    "roles": "c.JupyterHub.load_roles.append({'name': 'mine', 'scopes': ['list:users']})",
    "scopes": "c.JupyterHub.custom_scopes.update({'custom:mine': {'description': 'Mine.'}})",
    "environment": "c.Spawner.environment.update({'MINE': '1'})",
    "environment of RunaiLocalSpawner": "c.RunaiLocalSpawner.environment.update({'MINE': '1'})",
    "environment of two spawners": (
        "c.Spawner.environment.update({'A': '1'}); c.AdminSpawner.environment.update({'B': '1'})"
    ),
    "scopes of servers": "c.Spawner.server_token_scopes.append('list:users')",
    "scopes of RunaiLocalSpawner": "c.RunaiLocalSpawner.server_token_scopes.append('list:users')",
    "nothing": "c.RunaiLocalSpawner.environment; c.JupyterHub.services",
}


@pytest.mark.parametrize(
    "file_text",
    [*REPLACING_FILES.values(), *ADDING_FILES.values()],
    ids=[*REPLACING_FILES, *(f"adds {name}" for name in ADDING_FILES)],
)
def test_required_platform_settings_survive_any_admins_config_file(
    platform_config: Any, file_text: str
):
    config, _ = config_with_file(platform_config, file_text)

    services, roles = by_name(config.JupyterHub.services), by_name(config.JupyterHub.load_roles)
    for service in platform_config.JupyterHub.services:
        assert services[service["name"]].keys() >= service.keys()
    for role in platform_config.JupyterHub.load_roles:
        assert set(roles[role["name"]]["scopes"]) >= set(role["scopes"])
        assert set(roles[role["name"]].get("services", [])) >= set(role.get("services", []))
    assert len(config.JupyterHub.services) == len(services)
    assert len(config.JupyterHub.load_roles) == len(roles)
    assert config.JupyterHub.custom_scopes.keys() >= platform_config.JupyterHub.custom_scopes.keys()
    servers = servers_settings(config)
    assert set(servers.server_token_scopes) >= set(platform_config.Spawner.server_token_scopes)
    assert servers.environment.keys() >= platform_config.Spawner.environment.keys()


@pytest.mark.parametrize("file_text", REPLACING_FILES.values(), ids=REPLACING_FILES)
def test_platform_settings_restored_after_replacement_by_an_admin_are_recorded(
    platform_config: Any, file_text: str
):
    _, completion = config_with_file(platform_config, file_text)

    assert completion.added != []


@pytest.mark.parametrize("file_text", ADDING_FILES.values(), ids=ADDING_FILES)
def test_admins_config_file_that_only_adds_settings_needs_no_restored_settings(
    platform_config: Any, file_text: str
):
    _, completion = config_with_file(platform_config, file_text)

    assert completion.added == []


def test_additions_in_admins_config_file_are_merged(platform_config: Any):
    config, _ = config_with_file(
        platform_config,
        "c.JupyterHub.services.append({'name': 'mine'})\n"
        "c.LocalProcessSpawner.environment.update({'A': '1'})\n"
        "c.RunaiLocalSpawner.environment.update({'B': '2'})\n"
        "c.RunaiLocalSpawner.server_token_scopes.append('list:users')",
    )

    servers = servers_settings(config)
    assert "mine" in by_name(config.JupyterHub.services)
    assert servers.environment == {**platform_config.Spawner.environment, "A": "1", "B": "2"}
    assert servers.server_token_scopes == [
        *platform_config.Spawner.server_token_scopes,
        "list:users",
    ]


def test_explicit_values_of_admins_config_file_are_preserved(platform_config: Any):
    config, completion = config_with_file(
        platform_config,
        "c.JupyterHub.services = [{'name': 'runai', 'display': False, 'environment': {'A': '1'}}]\n"
        "c.JupyterHub.load_roles = [{'name': 'runai-admin', 'users': ['eve'], 'scopes': []}]\n"
        "c.Spawner.environment = {'JUPYTER_CONFIG_PATH': '/mine'}",
    )

    service = by_name(config.JupyterHub.services)["runai"]
    assert (service["display"], service["environment"]["A"]) == (False, "1")
    assert by_name(config.JupyterHub.load_roles)["runai-admin"]["users"] == ["eve"]
    assert config.Spawner.environment["JUPYTER_CONFIG_PATH"] == "/mine"
    assert "runai-removals to c.JupyterHub.services" in completion.added


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
        ("AdminSpawner.environment", "= [('A', '1')]"),
    ],
)
def test_admins_setting_that_cannot_be_completed_is_refused_by_name(
    platform_config: Any, setting: str, value: str
):
    sentence = re.escape(f"c.{setting} in jupyterhub_config.py")
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        config_with_file(
            platform_config, f"c.{setting} {value}" if value[0] == "=" else f"c.{setting}{value}"
        )
    assert refused.value.hint.startswith(f"Write c.{setting} = ")


def test_documented_idle_culler_config_leaves_the_platform_settings_complete(platform_config: Any):
    block = r"```python\n(import sys\n\nc\.JupyterHub\.load_roles.*?)```"
    (lines,) = re.findall(block, PAGE.read_text(), re.DOTALL)
    config, _ = config_with_file(platform_config, lines)

    services, roles = by_name(config.JupyterHub.services), by_name(config.JupyterHub.load_roles)
    assert {"runai", "runai-removals", "jupyterhub-idle-culler-service"} <= services.keys()
    culler = roles["jupyterhub-idle-culler-role"]
    assert culler["services"] == ["jupyterhub-idle-culler-service"]
    assert "runai-service" in roles
