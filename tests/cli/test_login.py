"""`runai login` against the whole platform, JupyterHub included, as `runai up` starts it."""

from __future__ import annotations

import stat
import sys
import termios

import pytest

from cli.terminal import on_terminal
from runai.hub_service.client.connection import config_path, read_config
from runai.hub_service.processes.own_process import MIN_DESCRIPTORS, max_descriptors
from waiting import eventually

pytestmark = pytest.mark.hub


@pytest.fixture
def platform(five_gpus):
    return five_gpus


@pytest.fixture
def url(platform):
    return f"{platform.url}/"


@pytest.fixture
def log_in(platform, url, runai):
    def run(user, *, address=None, password=None):
        return runai(
            *("login", address or url, "--user", user, "--password-stdin"),
            stdin=f"{password or platform.password(user)}\n",
        )

    return run


def test_login_by_password_stores_a_token_and_no_password(log_in, runai, platform, url):
    result = log_in("bob")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"Logged in to {url} as bob. Projects: vision.\n"
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert platform.password("bob") not in config_path().read_text()
    assert runai("whoami").stdout.splitlines()[0].split() == ["User:", "bob"]


def test_token_of_a_login_has_the_permissions_of_its_owner(log_in, runai):
    log_in("bob")
    refused = runai("project", "create", "audio")
    log_in("admin")
    allowed = runai("project", "create", "audio")
    runai("project", "delete", "audio")

    assert refused.exit_code == 1
    assert allowed.exit_code == 0


def test_admin_added_after_the_hub_started_can_create_projects_after_login(log_in, runai, platform):
    """The hub's role of admins contains only the admins of its start."""
    added = runai(
        *("user", "--data-dir", str(platform.data_dir), "add", "dave", "--admin"),
        *("--password-stdin",),
        stdin="a-password-of-daves\n",
    )
    assert added.exit_code == 0, added.output
    log_in("dave", password="a-password-of-daves")
    created = runai("project", "create", "audio")
    runai("project", "delete", "audio")
    user_line = runai("whoami").stdout.splitlines()[0]

    assert created.exit_code == 0
    assert user_line.split()[1:] == ["dave", "(admin)"]


def test_login_with_a_wrong_password_stores_nothing(log_in):
    result = log_in("bob", password="not-his-password")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The hub does not accept this password of bob.\nHint: ")
    assert not config_path().exists()


def test_login_stores_a_hub_token_from_standard_input(log_in, runai, url, home):
    log_in("bob")
    connection = read_config(config_path())
    assert connection is not None
    config_path().unlink()

    result = runai("login", url, "--token", stdin=f"{connection.token}\n")

    assert "as bob." in result.stdout
    assert connection.token not in result.output
    assert read_config(config_path()) == connection


def test_login_with_an_unknown_token_stores_nothing(runai, url):
    result = runai("login", url, "--token", stdin=f"{'0' * 32}\n")

    assert result.exit_code == 1
    assert "token" in result.stderr
    assert not config_path().exists()


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        ("", "Standard input holds no token."),
        ("é\n", "That is no token: it has characters that no token has."),
        ("a\x1b[2J\n", "That is no token: it has characters that no token has."),
    ],
    ids=["empty input", "letter outside ASCII", "control characters"],
)
def test_login_refuses_an_invalid_token_with_a_hint(runai, url, stdin, sentence):
    result = runai("login", url, "--token", "-", stdin=stdin)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {sentence}\nHint: ")


def test_login_on_a_terminal_prompts_for_a_token_without_echo(log_in, url, home):
    log_in("bob")
    connection = read_config(config_path())
    assert connection is not None
    config_path().unlink()
    program = [sys.executable, "-m", "runai.hub_service.cli", "login", url, "--token"]

    with on_terminal(program, {"HOME": str(home)}, with_input=True) as (terminal, process):
        terminal.read_until(b"Token")

        def is_echo_off() -> bool:
            local_modes = termios.tcgetattr(terminal.master_fd)[3]
            return not local_modes & termios.ECHO

        eventually(is_echo_off)
        terminal.type(f"{connection.token}\n")
        terminal.read_until(b"as bob.")
        assert process.wait(60) == 0

    assert connection.token.encode() not in terminal.screen
    assert read_config(config_path()) == connection


@pytest.mark.skipif(
    max_descriptors() < MIN_DESCRIPTORS,
    reason="the doctor is right here: a process has few descriptors",
)
def test_doctor_finds_nothing_wrong_after_a_login(log_in, runai, platform):
    log_in("bob")

    def is_well() -> bool:  # the service answers before the agent has started
        result = runai("doctor", "--data-dir", str(platform.data_dir))
        assert (result.exit_code, "failure" in result.stdout) == (0, False), result.stdout
        assert "5 of them simulated" in result.stdout
        return True

    eventually(is_well)


def test_logout_removes_the_stored_login(log_in, runai):
    log_in("bob")

    assert runai("logout").stdout == "Logged out.\n"
    assert runai("list").exit_code == 1
    assert runai("logout").stdout == "Nobody was logged in here.\n"
