"""A hub with a certificate of its own authority: login, later commands, doctor."""

from __future__ import annotations

import pytest

from control_plane.certificates import Authority
from runai.hub_service.cli.framework.cli_config import use_project
from runai.hub_service.client.connection import Connection, config_path, read_config, write_config
from tls_hub import tls_hub

pytestmark = pytest.mark.tier("test")

LOOPBACK = ["127.0.0.1"]
HINT = "Name the authority that signed it: `runai login URL --ca FILE`."


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def ca(authority, tmp_path, monkeypatch):
    """Return the authority's file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    return tmp_path / "ca.crt"


@pytest.fixture
def hub(authority, tmp_path):
    with tls_hub(authority.server(["hub"], LOOPBACK), tmp_path) as running:
        yield running


def test_commands_after_login_trust_the_ca_file_of_the_login(runai, findings, hub, ca):
    login = runai("login", hub.url, "--token", "--ca", ca.name, stdin="t\n")
    use_project("vision")

    assert login.stdout == f"Logged in to {hub.url} as ana. Projects: vision.\n", login.output
    assert read_config(config_path()) == Connection(
        f"{hub.url}services/runai/", "t", "vision", str(ca)
    )
    assert runai("whoami").exit_code == 0
    assert findings()["hub"]["text"] == "JupyterHub 1 answers"
    assert findings()["service"]["verdict"] == "ok"


def test_commands_name_a_ca_file_that_was_removed_after_login(runai, findings, hub, ca):
    runai("login", hub.url, "--token", "--ca", ca.name, stdin="t\n")
    ca.unlink()
    sentence = f"The authority's certificate cannot be read from {ca}: No such file or directory."

    result = runai("whoami")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {sentence}\nHint: ")
    assert "`runai login URL --ca FILE`" in result.stderr
    assert findings()["login"]["text"] == sentence
    assert runai("logout").stdout == "Logged out.\n"


@pytest.mark.parametrize(
    "ca_name", [None, "other.crt"], ids=["authorities of the system", "file of another authority"]
)
def test_untrusted_hub_certificate_is_refused_with_a_ca_option_hint(
    runai, findings, hub, tmp_path, ca_name
):
    path = tmp_path / "other.crt"
    path.write_bytes(Authority().certificate)
    ca_option = [] if ca_name is None else ["--ca", str(path)]
    ca = None if ca_name is None else str(path)

    login = runai("login", hub.url, "--token", *ca_option, stdin="t\n")
    is_login_stored = config_path().exists()
    write_config(Connection(f"{hub.url}services/runai/", "t", ca=ca), config_path())
    whoami = runai("whoami")
    report = findings()

    for result in (login, whoami):
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: The certificate of 127.0.0.1 is not trusted: ")
        assert HINT in result.stderr
    assert not is_login_stored
    for subject in ("hub", "service"):
        assert report[subject]["text"].startswith("The certificate of 127.0.0.1 is not trusted: ")
        assert report[subject]["mend"].startswith(HINT)


def test_hub_certificate_for_a_different_address_is_refused_without_a_ca_option_hint(
    runai, authority, ca, tmp_path
):
    with tls_hub(authority.server(["hub"], ["127.0.0.2"]), tmp_path) as other_hub:
        result = runai("login", other_hub.url, "--token", "--ca", str(ca), stdin="t\n")

    assert "The certificate of 127.0.0.1 is not trusted: IP address mismatch" in result.stderr
    assert "--ca" not in result.stderr
