"""`runai doctor` finds what usually goes wrong and says how to mend it."""

from __future__ import annotations

import json

import pytest

from runai.hub_service.cli import examination
from runai.hub_service.connection import Connection, config_path, write_config


@pytest.fixture
def findings(runai):
    def examine(*arguments):
        result = runai("doctor", "-o", "json", *arguments)
        found = json.loads(result.stdout)
        assert result.exit_code == any(f["verdict"] == "failure" for f in found)
        return {f["subject"]: f for f in found}

    return examine


@pytest.fixture
def remembered(home, free_port):
    """A login at a service that does not run."""
    write_config(Connection(f"http://127.0.0.1:{free_port()}/", "token"), config_path())
    return config_path()


def test_without_a_login_the_way_to_one_is_shown(findings):
    found = findings()["login"]

    assert found["verdict"] == "failure"
    assert "runai login URL" in found["mend"]


def test_ours_is_the_only_provider_of_the_namespace(findings):
    assert findings()["packages"]["verdict"] == "ok"


def test_the_library_of_the_same_name_is_found_out(findings, tmp_path, monkeypatch):
    metadata = tmp_path / "runai-0.4.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: runai\nVersion: 0.4.1\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = findings()["packages"]

    assert found["verdict"] == "failure"
    assert found["text"].startswith("the library `runai` 0.4.1 of PyPI")
    assert found["mend"].startswith("pip uninstall runai")


def test_a_service_that_is_away_is_a_failure(findings, remembered):
    found = findings()

    assert found["login"]["verdict"] == "ok"
    assert found["service"]["verdict"] == "failure"
    assert "runai up" in found["service"]["mend"]


def test_a_token_that_others_can_read_is_a_failure(findings, remembered):
    remembered.chmod(0o644)

    found = findings()["login"]

    assert found["verdict"] == "failure"
    assert found["mend"] == f"chmod 600 {remembered}"


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, "ok"), (0o750, "failure")])
def test_secrets_that_others_can_read_are_a_failure(mode, verdict, findings, tmp_path):
    secrets = tmp_path / "platform/secrets"
    secrets.mkdir(parents=True, mode=0o700)
    secrets.chmod(mode)

    assert (
        findings("--data-dir", str(tmp_path / "platform"))["data directory"]["verdict"] == verdict
    )


def test_a_machine_without_a_driver_is_no_failure():
    assert examination.check_driver().verdict in {"ok", "note"}


def test_the_findings_are_readable(runai):
    lines = runai("doctor").stdout.splitlines()

    assert lines[0] == "ok       packages       one provider of `runai`"
