"""JupyterHub's configuration on one machine: no open access, every file in the data directory."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.orm import new_session_factory

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import AccountsAuthenticator
from runai.embedded.configuration import STARTS_WITHIN_S, at_address, configuration
from runai.embedded.data_directory import DataDirectory
from runai.embedded.proxy.public_address import public_address
from runai.embedded.settings import Settings


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirectory:
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 16)  # no logins in these tests
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    Accounts(directory).add("root", "correct horse", admin=True)
    Accounts(directory).add("ana", "correct horse")
    return directory


@pytest.fixture
def config(directory: DataDirectory) -> Any:
    return complete_config(Settings(directory.root, port=8123, simulate=5), directory)


def complete_config(
    settings: Settings, directory: DataDirectory, admin_settings: dict[str, Any] | None = None
):
    """Return the configuration as the hub completes it, with an admin's own settings."""
    config: Any = configuration(settings, directory)
    config.JupyterHub.update(admin_settings or {})
    config.merge(at_address(public_address(settings, config.JupyterHub), config))
    return config


def service_of(config: Any) -> dict[str, Any]:
    """Return the GPU service among the services of the hub."""
    services = {service["name"]: service for service in config.JupyterHub.services}
    return dict(services["runai"])


@pytest.mark.parametrize("trait", ["bind_url", "hub_bind_url"])
def test_hub_listens_only_on_the_loopback_address(config: Any, trait: str):
    assert config.JupyterHub[trait].startswith("http://127.0.0.1:")


def test_service_and_server_start_timeouts_allow_minutes_of_imports(config: Any):
    service = service_of(config)

    assert service.get("timeout", STARTS_WITHIN_S) == STARTS_WITHIN_S
    assert config.Spawner.http_timeout == STARTS_WITHIN_S


def test_cookie_secret_is_in_the_data_directory_and_no_pid_file_is_written(
    config: Any, tmp_path: Path
):
    assert config.JupyterHub.cookie_secret_file == str(tmp_path / "secrets" / "cookie_secret")
    assert config.JupyterHub.pid_file == ""


@pytest.mark.parametrize("name", ["quest?ion", "a%20b", "100%", "a#b", "x;y&z='", "ü \\"])
def test_hub_database_opens_in_a_directory_with_special_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    directory = DataDirectory(tmp_path / name)
    directory.prepare(system_users=False)
    config: Any = configuration(Settings(directory.root, simulate=1), directory)
    monkeypatch.chdir(directory.root)  # as `runai up` does

    new_session_factory(config.JupyterHub.db_url)().close()

    assert (directory.root / "jupyterhub.sqlite").stat().st_size > 0
    assert [*tmp_path.iterdir()] == [directory.root]


def test_hub_admits_only_accounts_of_the_data_directory(config: Any, tmp_path: Path):
    assert config.JupyterHub.authenticator_class is AccountsAuthenticator
    assert config.AccountsAuthenticator.data_dir == str(tmp_path)
    assert "allow_all" not in config.Authenticator


def test_unix_logins_use_pam_and_block_root(directory: DataDirectory):
    config: Any = configuration(Settings(directory.root, system_users=True), directory)

    assert config.JupyterHub.authenticator_class == "pam"
    assert config.Authenticator.blocked_users == {"root"}
    assert config.RunaiLocalSpawner.system_users
    assert [s["name"] for s in config.JupyterHub.services] == ["runai", "runai-removals"]


def test_members_submit_and_admins_set_quotas(config: Any):
    roles = {role["name"]: role for role in config.JupyterHub.load_roles}

    assert roles["user"]["scopes"] == [
        "self",
        "access:services!service=runai",
        "custom:runai:submit",
    ]
    assert roles["runai-admin"]["users"] == ["root"]
    assert roles["runai-admin"]["scopes"] == ["custom:runai:admin"]


def test_service_role_has_only_read_scopes_and_server_deletion(config: Any):
    roles = {role["name"]: role for role in config.JupyterHub.load_roles}

    assert roles["runai-service"]["services"] == ["runai"]
    assert set(roles["runai-service"]["scopes"]) == {
        "list:users",
        "read:users:groups",
        "read:roles:users",
        "read:servers",
        "read:groups",
        "delete:servers",
    }


def test_token_of_the_account_removal_service_is_stable_and_not_passed_to_any_process(
    config: Any, directory: DataDirectory
):
    later = configuration(Settings(directory.root, port=8123, simulate=5), directory)
    [token, again] = [
        service["api_token"]
        for c in (config, later)
        for service in c.JupyterHub.services
        if service["name"] == "runai-removals"
    ]

    assert token == again
    assert token not in json.dumps([service_of(config), config.Spawner.environment])


def test_notebook_token_scopes_are_limited_to_its_user_and_the_service(config: Any):
    assert set(config.Spawner.server_token_scopes) == {
        "users:activity!user",
        "access:servers!server",
        "access:services!service=runai",
        "custom:runai:submit",
    }


def test_shared_secret_of_spawner_and_service_is_not_passed_to_sessions(
    config: Any, directory: DataDirectory
):
    service = service_of(config)
    token = directory.hub_token()

    assert service["environment"]["RUNAI_HUB_TOKEN"] == token
    assert config.RunaiLocalSpawner.service_token == token
    assert token not in json.dumps(config.Spawner.environment)


@pytest.mark.parametrize("prefix", ["/", "/jupyter/"])
def test_sessions_reach_the_service_directly_under_the_base_url(
    directory: DataDirectory, prefix: str
):
    admin_settings = {"base_url": prefix, "ip": "0.0.0.0", "ssl_cert": "cert.pem"}
    config = complete_config(Settings(directory.root), directory, admin_settings)

    service_url = f"{service_of(config)['url']}{prefix}services/runai/"
    assert config.RunaiLocalSpawner.service_url == service_url
    assert service_url.startswith("http://127.0.0.1:")
    assert "api_url" not in config.RunaiLocalSpawner


def test_service_environment_contains_the_simulated_gpu_count(config: Any):
    service = service_of(config)

    assert service["environment"]["RUNAI_SIMULATE"] == "5"
    assert "RUNAI_API_URL" not in service["environment"]


@pytest.mark.parametrize(
    ("admin_settings", "host"),
    [
        pytest.param({}, "127.0.0.1", id="loopback"),
        pytest.param({"ip": "10.1.2.3"}, "10.1.2.3", id="one address"),
        pytest.param({"ip": "fd00::1"}, "fd00::1", id="IPv6"),
        pytest.param({"ip": ""}, socket.gethostname(), id="every address"),
        pytest.param({"public_url": "https://Gpu.example.org/"}, "gpu.example.org", id="URL"),
        pytest.param({"subdomain_host": "https://hub.org:8443"}, "hub.org", id="subdomains"),
    ],
)
def test_proxy_environment_variables_are_passed_on_and_no_proxy_includes_the_hub(
    directory: DataDirectory,
    monkeypatch: pytest.MonkeyPatch,
    admin_settings: dict[str, Any],
    host: str,
):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "a.org")
    config = complete_config(Settings(directory.root), directory, admin_settings)

    for environ in (config.RunaiLocalSpawner.shell_environment, service_of(config)["environment"]):
        assert environ["https_proxy"] == "http://proxy:3128"
        unproxied_hosts = environ["no_proxy"].split(",")
        assert unproxied_hosts == [*dict.fromkeys(["a.org", "127.0.0.1", "localhost", "::1", host])]


def test_admins_config_file_overrides_shell_environment(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    admin_environment = {"TZ": "UTC", "HTTP_PROXY": "http://other:3128"}
    services = [{"name": "runai", "url": "http://127.0.0.1:1", "environment": admin_environment}]
    service = service_of(
        complete_config(Settings(directory.root), directory, {"services": services})
    )

    assert admin_environment.items() <= service["environment"].items()
    assert "http_proxy" not in service["environment"]


def test_jupyterlab_news_prompt_is_disabled(config: Any):
    folder, of_extension = map(
        Path, config.Spawner.environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    )
    defaults = json.loads((folder / "labconfig" / "default_setting_overrides.json").read_text())

    assert (of_extension / "jupyter_server_config.d" / "runai.json").exists()
    assert defaults["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_service_and_spawner_use_the_same_pam_service(directory: DataDirectory):
    config = complete_config(Settings(directory.root, system_users=True), directory)

    assert service_of(config)["environment"]["RUNAI_PAM_SERVICE"] == "login"
    assert config.RunaiLocalSpawner.login_service == "login"
