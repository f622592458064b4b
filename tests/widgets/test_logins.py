"""Logins: a newer one heals an open client, and the default of another hub does not count."""

from __future__ import annotations

import pytest

from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.client.connection import Connection, config_path, write_config
from runai.hub_service.wire.errors import NotFound, Unauthenticated
from runai.hub_service.wire.workload_request import SubmitRequest


@pytest.fixture
def login(tmp_path, monkeypatch):
    """Return a function that logs in as `runai login` does, outside of any session."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("RUNAI_API_URL", "JUPYTERHUB_API_TOKEN", "RUNAI_PROJECT"):
        monkeypatch.delenv(name, raising=False)

    def write_login(url: str, token: str) -> None:
        write_config(Connection(url, token), config_path())

    return write_login


def test_client_takes_the_token_of_a_newer_login(service, login):
    login(service.url, "revoked")
    with Client.discover() as client:
        with pytest.raises(Unauthenticated):
            client.whoami()
        login(service.url, service.tokens["bob"])

        assert client.whoami().name == "bob"
        assert next(client.events()).projects


async def test_awaited_client_takes_the_token_of_a_newer_login(service, login):
    login(service.url, "revoked")
    async with AsyncClient.discover() as client:
        login(service.url, service.tokens["bob"])

        assert (await client.whoami()).name == "bob"


def test_client_ignores_a_login_to_a_different_hub(service, login):
    login(service.url, "revoked")
    with Client.discover() as client:
        login("https://other.example.org/services/runai/", service.tokens["bob"])

        with pytest.raises(Unauthenticated):
            client.whoami()


def test_token_passed_in_code_is_not_replaced_by_a_login(service, login):
    login(service.url, service.tokens["bob"])
    with Client(service.url, "revoked") as client, pytest.raises(Unauthenticated):
        client.whoami()


def test_revoked_token_in_a_session_is_refused_with_a_hint_to_restart_it(
    service, login, monkeypatch
):
    login(service.url, service.tokens["bob"])
    monkeypatch.setenv("RUNAI_API_URL", service.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "revoked")

    with Client.discover() as client, pytest.raises(Unauthenticated) as refused:
        client.whoami()

    assert refused.value.hint == "Stop this server and start it again: it then has a new token."


def test_default_project_of_a_different_hub_is_not_used(service):
    request = SubmitRequest(command=["true"], name="exp1", gpus=1)
    with Client(service.url, service.tokens["bob"], default_project="speech") as client:
        assert client.submit(request, dry_run=True).workloads[0].project == "vision"
        with pytest.raises(NotFound, match="There is no project speech"):
            client.submit(request.model_copy(update={"project": "speech"}))
