"""What `runai login` refuses or warns of where no hub answers."""

from __future__ import annotations

import pytest

from runai.hub_service.cli.hub_login import HubLogin, hub_root
from runai.hub_service.connection import config_path

URL = "http://127.0.0.1:8000/"


@pytest.mark.parametrize("given", [["--token", "s3cret"], ["--token=s3cret"]], ids=["two", "one"])
def test_a_token_on_the_command_line_is_refused_and_not_said_again(runai, given):
    for arguments in ([URL, *given], [*given, URL]):
        result = runai("login", *arguments)

        assert result.exit_code == 2
        assert "is seen by others (`ps`)" in result.stderr
        assert "`runai login URL --token`" in result.stderr
        assert "s3cret" not in result.output
    assert not config_path().exists()


def test_an_address_without_a_hub_is_named(runai, free_port):
    url = f"http://127.0.0.1:{free_port()}/"

    result = runai("login", url, "--user", "bob", "--password-stdin", stdin="x\n")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: Nothing answers at {url}.\nHint: ")


@pytest.mark.parametrize(
    ("address", "overheard"),
    [
        ("http://127.0.0.1:8000", False),
        ("https://hub.example.org", False),
        ("http://hub.example.org", True),
    ],
)
def test_a_password_without_encryption_is_warned_of(address, overheard):
    with HubLogin(hub_root(address)) as hub:
        assert hub.is_overheard == overheard


def test_what_is_no_address_is_named(runai):
    assert "'ftp://x' is no address of a JupyterHub." in runai("login", "ftp://x").stderr
