"""JupyterHub's configuration on one machine: no open access, every file in the data directory."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.orm import new_session_factory

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import AccountsAuthenticator
from runai.embedded.configuration import STARTS_WITHIN_S, at_address, configuration
from runai.embedded.directory import DataDirectory
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
def made(directory: DataDirectory) -> Any:
    return complete(Settings(directory.root, port=8123, simulate=5), directory)


def complete(settings: Settings, directory: DataDirectory, chosen: dict[str, Any] | None = None):
    """Return the configuration as the hub completes it, with an admin's own settings."""
    made: Any = configuration(settings, directory)
    made.JupyterHub.update(chosen or {})
    made.merge(at_address(public_address(settings, made.JupyterHub), made))
    return made


def service_of(made: Any) -> dict[str, Any]:
    """Return the GPU service among the services of the hub."""
    services = {service["name"]: service for service in made.JupyterHub.services}
    return dict(services["runai"])


@pytest.mark.parametrize("trait", ["bind_url", "hub_bind_url"])
def test_it_listens_on_this_machine_only(made: Any, trait: str):
    assert made.JupyterHub[trait].startswith("http://127.0.0.1:")


def test_a_machine_that_imports_for_minutes_still_starts(made: Any):
    service = service_of(made)

    assert service.get("timeout", STARTS_WITHIN_S) == STARTS_WITHIN_S
    assert made.Spawner.http_timeout == STARTS_WITHIN_S


def test_every_file_lies_in_the_data_directory(made: Any, tmp_path: Path):
    assert made.JupyterHub.cookie_secret_file == str(tmp_path / "secrets" / "cookie_secret")
    assert made.JupyterHub.pid_file == ""


@pytest.mark.parametrize("name", ["quest?ion", "a%20b", "100%", "a#b", "x;y&z='", "ü \\"])
def test_the_hubs_database_lies_in_a_data_directory_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    directory = DataDirectory(tmp_path / name)
    directory.prepare(system_users=False)
    made: Any = configuration(Settings(directory.root, simulate=1), directory)
    monkeypatch.chdir(directory.root)  # as `runai up` does

    new_session_factory(made.JupyterHub.db_url)().close()

    assert (directory.root / "jupyterhub.sqlite").stat().st_size > 0
    assert [*tmp_path.iterdir()] == [directory.root]


def test_hub_admits_only_accounts_of_the_data_directory(made: Any, tmp_path: Path):
    assert made.JupyterHub.authenticator_class is AccountsAuthenticator
    assert made.AccountsAuthenticator.data_dir == str(tmp_path)
    assert "allow_all" not in made.Authenticator


def test_on_unix_accounts_root_does_not_enter(directory: DataDirectory):
    made: Any = configuration(Settings(directory.root, system_users=True), directory)

    assert made.JupyterHub.authenticator_class == "pam"
    assert made.Authenticator.blocked_users == {"root"}
    assert made.RunaiLocalSpawner.system_users
    assert [s["name"] for s in made.JupyterHub.services] == ["runai", "runai-removals"]


def test_members_submit_and_admins_set_quotas(made: Any):
    roles = {role["name"]: role for role in made.JupyterHub.load_roles}

    assert roles["user"]["scopes"] == [
        "self",
        "access:services!service=runai",
        "custom:runai:submit",
    ]
    assert roles["runai-admin"]["users"] == ["root"]
    assert roles["runai-admin"]["scopes"] == ["custom:runai:admin"]


def test_the_service_may_look_and_stop_and_nothing_else(made: Any):
    roles = {role["name"]: role for role in made.JupyterHub.load_roles}

    assert roles["runai-service"]["services"] == ["runai"]
    assert set(roles["runai-service"]["scopes"]) == {
        "list:users",
        "read:users:groups",
        "read:roles:users",
        "read:servers",
        "read:groups",
        "delete:servers",
    }


def test_the_token_of_removals_is_the_same_at_each_start_and_is_handed_to_no_process(
    made: Any, directory: DataDirectory
):
    later = configuration(Settings(directory.root, port=8123, simulate=5), directory)
    [token, again] = [
        service["api_token"]
        for c in (made, later)
        for service in c.JupyterHub.services
        if service["name"] == "runai-removals"
    ]

    assert token == again
    assert token not in json.dumps([service_of(made), made.Spawner.environment])


def test_a_notebook_may_use_the_service_in_its_users_name(made: Any):
    assert set(made.Spawner.server_token_scopes) == {
        "users:activity!user",
        "access:servers!server",
        "access:services!service=runai",
        "custom:runai:submit",
    }


def test_spawner_and_service_share_a_secret_that_no_session_is_given(
    made: Any, directory: DataDirectory
):
    service = service_of(made)
    token = directory.hub_token()

    assert service["environment"]["RUNAI_HUB_TOKEN"] == token
    assert made.RunaiLocalSpawner.service_token == token
    assert token not in json.dumps(made.Spawner.environment)


@pytest.mark.parametrize("prefix", ["/", "/jupyter/"])
def test_sessions_reach_the_service_at_its_own_address(directory: DataDirectory, prefix: str):
    chosen = {"base_url": prefix, "ip": "0.0.0.0", "ssl_cert": "cert.pem"}
    made = complete(Settings(directory.root), directory, chosen)

    service = f"{service_of(made)['url']}{prefix}services/runai/"
    assert made.RunaiLocalSpawner.service_url == service
    assert service.startswith("http://127.0.0.1:")
    assert "api_url" not in made.RunaiLocalSpawner


def test_the_service_is_told_what_up_was_asked_for(made: Any):
    service = service_of(made)

    assert service["environment"]["RUNAI_SIMULATE"] == "5"
    assert "RUNAI_API_URL" not in service["environment"]


@pytest.mark.parametrize(
    ("chosen", "host"),
    [
        pytest.param({}, "127.0.0.1", id="this machine"),
        pytest.param({"ip": "10.1.2.3"}, "10.1.2.3", id="address"),
        pytest.param({"ip": "fd00::1"}, "fd00::1", id="IPv6"),
        pytest.param({"ip": ""}, socket.gethostname(), id="every address"),
        pytest.param({"public_url": "https://Gpu.example.org/"}, "gpu.example.org", id="name"),
        pytest.param({"subdomain_host": "https://hub.org:8443"}, "hub.org", id="subdomains"),
    ],
)
def test_sessions_and_service_get_the_shells_proxy_and_reach_the_hub_without_it(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any], host: str
):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "a.org")
    made = complete(Settings(directory.root), directory, chosen)

    for passed in (made.RunaiLocalSpawner.shell_environment, service_of(made)["environment"]):
        assert passed["https_proxy"] == "http://proxy:3128"
        direct = passed["no_proxy"].split(",")
        assert direct == [*dict.fromkeys(["a.org", "127.0.0.1", "localhost", "::1", host])]


def test_the_admins_file_overrides_the_shell(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    own = {"TZ": "UTC", "HTTP_PROXY": "http://other:3128"}
    services = [{"name": "runai", "url": "http://127.0.0.1:1", "environment": own}]
    service = service_of(complete(Settings(directory.root), directory, {"services": services}))

    assert own.items() <= service["environment"].items()
    assert "http_proxy" not in service["environment"]


def test_jupyterlab_does_not_ask_about_news(made: Any):
    folder = Path(made.Spawner.environment["JUPYTER_CONFIG_PATH"])
    defaults = json.loads((folder / "labconfig" / "default_setting_overrides.json").read_text())

    assert defaults["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_service_and_servers_ask_the_same_service_of_pam(directory: DataDirectory):
    made = complete(Settings(directory.root, system_users=True), directory)

    assert service_of(made)["environment"]["RUNAI_PAM_SERVICE"] == "login"
    assert made.RunaiLocalSpawner.login_service == "login"
