"""An account without a home directory, as a number in a container: each command says so."""

from __future__ import annotations

import pwd
import re

import pytest

from runai.embedded.up import parse
from runai.hub_service.client.connection import find_connection
from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.wire.errors import InvalidRequest
from runai.widgets.request import keyword_request

pytestmark = pytest.mark.tier("check")


@pytest.fixture(autouse=True)
def home(monkeypatch):
    """Take the home directory away."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CONFIG_HOME", "RUNAI_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        *[[name] for name in ("list", "whoami", "logout", "top", "usage", "backup")],
        ["user", "list"],
        ["restore", "x"],
        ["project", "use", "vision"],
        ["config"],
        ["submit", "exp", "--workdir", "~/x", "--", "true"],
        ["backup", "--data-dir", "~nobody-of-this-name/x"],
    ],
    ids=" ".join,
)
def test_command_without_a_home_directory_is_refused_with_a_hint(runai, arguments):
    result = runai(*arguments)

    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: The home directory of ")
    assert error.endswith("cannot be found.")
    assert hint.startswith("Hint: ")


def make_folder(path):
    path.mkdir()


def write_bytes_to(content):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    "make_login_file",
    [
        pytest.param(write_bytes_to(b""), id="empty file"),
        pytest.param(write_bytes_to(b'{"url": "http'), id="truncated JSON"),
        pytest.param(write_bytes_to(b"\xff\xfe"), id="not UTF-8"),
        pytest.param(write_bytes_to(b"[1]"), id="list instead of an object"),
        pytest.param(make_folder, id="folder"),
        pytest.param(lambda path: path.symlink_to(path), id="link to itself"),
    ],
)
def test_broken_login_file_is_ignored_in_a_session_and_refused_by_name_elsewhere(
    tmp_path, make_login_file
):
    login_file = tmp_path / "runai" / "config.json"
    login_file.parent.mkdir()
    make_login_file(login_file)
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}

    connection = find_connection(
        environment | {"RUNAI_API_URL": "http://x/", "JUPYTERHUB_API_TOKEN": "t"}
    )

    assert (connection.url, connection.project) == ("http://x/", None)
    with pytest.raises(InvalidRequest, match=re.escape(str(login_file))):
        find_connection(environment)


def test_session_connects_without_a_home_directory():
    connection = find_connection({"RUNAI_API_URL": "http://x/", "JUPYTERHUB_API_TOKEN": "t"})

    assert (connection.url, connection.token, connection.project) == ("http://x/", "t", None)


@pytest.mark.parametrize(
    ("path", "owner"),
    [("~/x", "this account (uid "), ("~nobody-of-this-name/x", "nobody-of-this-name")],
)
def test_path_below_an_unknown_home_directory_is_refused(path, owner):
    with pytest.raises(InvalidRequest) as refused:
        expanded(path)

    assert owner in refused.value.message


def test_notebook_job_with_workdir_in_an_unknown_home_directory_is_refused():
    with pytest.raises(InvalidRequest, match="home directory of nobody-of-this-name"):
        keyword_request(["true"], workdir="~nobody-of-this-name")


def test_up_without_a_home_directory_needs_the_data_dir_option(tmp_path):
    with pytest.raises(InvalidRequest, match="home directory of this account"):
        parse([])

    assert parse(["--data-dir", str(tmp_path)]).data_dir == tmp_path


def test_doctor_notes_a_missing_home_directory_and_continues(runai):
    result = runai("doctor")

    assert result.exit_code == 1
    assert "note     data directory The home directory of this account" in result.stdout
