"""`runai login` against the whole platform, JupyterHub included, as `runai up` starts it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ports import free_port
from runai.hub_service.cli import hub_login
from runai.hub_service.cli.hub_login import HubLogin, hub_root
from runai.hub_service.connection import config_path, read_config
from runai.hub_service.descriptors import FEW, most
from waiting import eventually

pytestmark = pytest.mark.hub

START_SECONDS = 180.0


@dataclass
class RunningPlatform:
    """Where a platform answers, and its generated passwords."""

    url: str
    data_dir: Path

    def password(self, user: str) -> str:
        lines = (self.data_dir / "secrets/passwords.txt").read_text().splitlines()
        return dict(line.split() for line in lines)[user]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("platform")
    port = free_port()
    running = RunningPlatform(f"http://127.0.0.1:{port}/", data_dir)
    command = [sys.executable, "-m", "runai.hub_service.cli", "up", "--simulate", "5"]
    log = data_dir / "up.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        eventually(lambda: _is_well(running, process, log), within=START_SECONDS, what="the start")
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(90)
        finally:
            process.kill()


def _is_well(running, process, log):
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        return httpx.get(f"{running.url}services/runai/health", timeout=60).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def log_in(platform, runai):
    def run(user, *, url=None, password=None):
        return runai(
            *("login", url or platform.url, "--user", user, "--password-stdin"),
            stdin=f"{password or platform.password(user)}\n",
        )

    return run


def test_a_password_becomes_a_token_of_ones_own(log_in, runai, platform):
    result = log_in("bob")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"Logged in to {platform.url} as bob. Projects: vision.\n"
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert platform.password("bob") not in config_path().read_text()
    assert runai("whoami").stdout.splitlines()[0].split() == ["User:", "bob"]


def test_any_page_of_the_hub_is_an_address(log_in, platform):
    result = log_in("patty", url=f"{platform.url}hub/login?next=%2Fhub%2Fhome")

    assert result.stdout.startswith(f"Logged in to {platform.url} as patty.")


def test_what_the_token_may_do_is_what_its_owner_may_do(log_in, runai):
    log_in("bob")
    refused = runai("project", "create", "audio")
    log_in("admin")
    done = runai("project", "create", "audio")
    runai("project", "delete", "audio")

    assert (refused.exit_code, done.exit_code) == (1, 0)


def test_who_became_an_admin_since_the_hub_started_administers_after_a_login(
    log_in, runai, platform
):
    """The role of admins names those that there were."""
    added = runai(
        *("user", "--data-dir", str(platform.data_dir), "add", "dave", "--admin"),
        *("--password-stdin",),
        stdin="a-password-of-daves\n",
    )
    assert added.exit_code == 0, added.output
    log_in("dave", password="a-password-of-daves")
    done = runai("project", "create", "audio")
    runai("project", "delete", "audio")

    assert (done.exit_code, runai("whoami").stdout.splitlines()[0].split()[1:]) == (
        0,
        ["dave", "(admin)"],
    )


def test_an_admins_notebook_is_refused_with_the_way_out(log_in, runai, platform, monkeypatch):
    with HubLogin(platform.url) as hub:
        hub.log_in("admin", platform.password("admin"))
        monkeypatch.setattr(hub_login, "ADMIN_SCOPES", ())  # as JupyterHub gives it to servers
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", hub.mint_token())
    monkeypatch.setenv("RUNAI_API_URL", f"{platform.url}services/runai/")
    refused = runai("project", "set", "vision", "--quota", "9")

    assert refused.exit_code == 1
    assert "it lacks custom:runai:admin" in refused.stderr
    assert "`runai login` outside of notebooks" in refused.stderr


def test_a_wrong_password_stores_nothing(log_in):
    result = log_in("bob", password="not-his-password")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The hub does not accept this password of bob.\nHint: ")
    assert not config_path().exists()


def test_a_token_of_the_hub_is_taken_where_there_is_no_password(log_in, runai, platform, home):
    log_in("bob")
    kept = read_config(config_path())
    assert kept is not None
    config_path().unlink()

    result = runai("login", platform.url, "--token", stdin=f"{kept.token}\n")

    assert "as bob." in result.stdout
    assert kept.token not in result.output
    assert read_config(config_path()) == kept


def test_an_unknown_token_stores_nothing(runai, platform):
    result = runai("login", platform.url, "--token", stdin=f"{'0' * 32}\n")

    assert result.exit_code == 1
    assert "token" in result.stderr
    assert not config_path().exists()


@pytest.mark.parametrize("given", [["--token", "s3cret"], ["--token=s3cret"]], ids=["two", "one"])
def test_a_token_on_the_command_line_is_refused_and_not_said_again(runai, platform, given):
    for arguments in ([platform.url, *given], [*given, platform.url]):
        result = runai("login", *arguments)

        assert result.exit_code == 2
        assert "is seen by others (`ps`)" in result.stderr
        assert "`runai login URL --token`" in result.stderr
        assert "s3cret" not in result.output
    assert not config_path().exists()


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        ("", "Standard input holds no token."),
        ("é\n", "That is no token: it has characters that no token has."),
        ("a\x1b[2J\n", "That is no token: it has characters that no token has."),
    ],
    ids=["nothing", "letters", "controls"],
)
def test_what_is_no_token_is_a_sentence(runai, platform, stdin, sentence):
    result = runai("login", platform.url, "--token", "-", stdin=stdin)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {sentence}\nHint: ")


def test_on_a_terminal_a_token_is_asked_for_and_not_shown(log_in, platform, home):
    log_in("bob")
    kept = read_config(config_path())
    assert kept is not None
    config_path().unlink()
    program = [sys.executable, "-m", "runai.hub_service.cli", "login", platform.url, "--token"]

    ours, theirs = os.openpty()
    with subprocess.Popen(
        program,
        env={**os.environ, "HOME": str(home)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as running:
        os.close(theirs)
        screen = read_until(ours, b"Token")
        eventually(lambda: not termios.tcgetattr(ours)[3] & termios.ECHO, what="it reads unseen")
        os.write(ours, f"{kept.token}\n".encode())
        screen += read_until(ours, b"as bob.")
    os.close(ours)

    assert running.returncode == 0
    assert kept.token.encode() not in screen
    assert read_config(config_path()) == kept


def read_until(terminal: int, text: bytes) -> bytes:
    screen = b""
    while text not in screen:
        screen += os.read(terminal, 1 << 16)
    return screen


@pytest.mark.skipif(most() < FEW, reason="the doctor is right here: a process has few descriptors")
def test_doctor_finds_nothing_wrong_after_a_login(log_in, runai, platform):
    log_in("bob")

    def is_well() -> bool:  # the agent is still on its way when the service answers already
        result = runai("doctor", "--data-dir", str(platform.data_dir))
        assert (result.exit_code, "failure" in result.stdout) == (0, False), result.stdout
        assert "5 of them simulated" in result.stdout
        return True

    eventually(is_well)


def test_after_a_logout_nothing_is_known(log_in, runai):
    log_in("bob")

    assert runai("logout").stdout == "Logged out.\n"
    assert runai("list").exit_code == 1
    assert runai("logout").stdout == "Nobody was logged in here.\n"


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
