"""`runai up` before it becomes JupyterHub: its options, errors and output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runai.embedded.data_directory import DataDirectory
from runai.embedded.hub import failure_text
from runai.embedded.settings import Settings
from runai.embedded.up import parse, print_accounts
from runai.hub_service.wire.errors import InvalidRequest


def up(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `runai up` as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "runai.embedded", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], {"port": 8000, "gpus": None, "simulate": None}, id="defaults"),
        pytest.param(["--gpus", "auto"], {"gpus": None}, id="gpus auto"),
        pytest.param(["--gpus", "4"], {"gpus": 4}, id="gpus"),
        pytest.param(["--simulate", "8"], {"simulate": 8}, id="simulate"),
        pytest.param(["--simulate", "0"], {"simulate": 0}, id="no GPU at all"),
        pytest.param(["--port", "9000"], {"ip": "127.0.0.1", "port": 9000}, id="port"),
        pytest.param(["--ip", "0.0.0.0"], {"ip": "0.0.0.0", "port": 8000}, id="address"),
        pytest.param(["--base-url", "jupyter"], {"base_url": "/jupyter/"}, id="prefix"),
        pytest.param(
            ["--domain", "GPU.example.org"],
            {"domain": "gpu.example.org", "ip": "", "port": 443},
            id="public name",
        ),
        pytest.param(
            ["--domain", "gpu.example.org", "--ip", "10.0.0.1", "--port", "8443"],
            {"ip": "10.0.0.1", "port": 8443},
            id="public name at an address",
        ),
        pytest.param(["--tls-internal"], {"tls_internal": True, "port": 8000}, id="own authority"),
        pytest.param(
            ["--tls-cert", __file__, "--tls-key", __file__],
            {"tls_cert": Path(__file__), "tls_key": Path(__file__)},
            id="certificate",
        ),
        pytest.param(["--data-dir", "/x/y"], {"data_dir": Path("/x/y")}, id="data dir"),
        pytest.param(["--gpu-sharing", "mps"], {"gpu_sharing": "mps"}, id="sharing by MPS"),
        pytest.param(
            ["--share-proxy-password"], {"share_proxy_password": True}, id="password of a proxy"
        ),
        pytest.param(["--system-users"], {"system_users": True}, id="system users"),
    ],
)
def test_up_options_are_parsed_into_settings(arguments: list[str], expected: dict[str, object]):
    settings = parse(arguments)

    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpus", "-1"], "--gpus -1 is not possible."),
        (["--gpus", "some"], "--gpus some is not possible."),
        (["--simulate", "1.5"], "--simulate 1.5 is not possible."),
        (["--simulate", "9999"], "--simulate 9999 is not possible."),
        (["--port", "0"], "--port 0 is not possible."),
        (["--port", "70000"], "--port 70000 is not possible."),
        (["--projects", "/no/such.yaml"], "There is no file /no/such.yaml."),
        (["--base-url", "/a b/"], "--base-url /a b/ is not possible."),
        (["--domain", "localhost:8000"], "--domain localhost:8000 is not possible."),
        (["--tls-cert", __file__], "--tls-cert is not enough."),
        (["--tls-key", __file__], "--tls-key is not enough."),
        (["--tls-cert", "/no.pem", "--tls-key", __file__], "There is no file /no.pem."),
    ],
)
def test_up_refuses_an_invalid_option_with_a_hint(arguments: list[str], sentence: str):
    with pytest.raises(InvalidRequest) as refused:
        parse(arguments)

    assert refused.value.message == sentence
    assert refused.value.hint


def test_answers_within_variable_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNAI_ANSWERS_WITHIN", "soon")
    with pytest.raises(InvalidRequest, match="RUNAI_ANSWERS_WITHIN soon is not possible"):
        parse([])
    monkeypatch.setenv("RUNAI_ANSWERS_WITHIN", "0")

    assert parse([]).answers_within == 0


@pytest.mark.parametrize(
    "settings",
    [
        Settings(Path("/data")),
        Settings(
            Path("/data"),
            ip="",
            port=9000,
            base_url="/jupyter/",
            domain="gpu.example.org",
            tls_cert=Path("/c.pem"),
            tls_key=Path("/k.pem"),
            tls_internal=True,
            gpus=4,
            projects=Path("/p.yaml"),
            policy=Path("/q.yaml"),
            system_users=True,
            gpu_sharing="mps",
            share_proxy_password=True,
            answers_within=7,
        ),
        Settings(Path("/data"), simulate=0),
    ],
    ids=["defaults", "all", "no GPU"],
)
def test_platform_settings_survive_the_environment_round_trip(settings: Settings):
    assert Settings.from_environment(settings.environment()) == settings


def test_up_closes_the_data_directory_before_it_reports_a_taken_port(tmp_path: Path):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o777)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = up("--port", str(port), "--data-dir", str(data_dir))

    assert result.stdout == f"{data_dir} could be written by others; it is closed to them now.\n"
    assert not data_dir.stat().st_mode & 0o022
    assert result.returncode == 1
    assert result.stderr == (
        f"runai up: Port {port} of 127.0.0.1 is taken by another program."
        f" Choose another one, for example --port {port + 1}.\n"
    )


@pytest.mark.parametrize(
    ("name", "text", "arguments", "sentence"),
    [
        pytest.param(
            "projects.yaml",
            "projects:\n  vision:\n    membres: [bob]\n",
            ["--projects", "projects.yaml"],
            ", line 3: project vision has a field 'membres', which means nothing.",
            id="projects",
        ),
        pytest.param(
            "policy.yaml",
            "packing: spred\n",
            ["--policy", "policy.yaml"],
            ": policy: packing must be one of binpack, spread, frag, not 'spred'.",
            id="policy",
        ),
        pytest.param(
            "data/jupyterhub_config.py",
            "c = get_config()\nc.JupyterHub.port = (\n",
            [],
            ", line 2: this is no Python: '(' was never closed.",
            id="own configuration",
        ),
        pytest.param(
            "cert.pem",
            "no PEM",
            ["--tls-cert", "cert.pem", "--tls-key", "cert.pem"],
            "cert.pem and {folder}/cert.pem are no certificate and key",
            id="certificate",
        ),
    ],
)
def test_up_with_an_invalid_file_prints_one_line_and_starts_no_platform(
    tmp_path: Path, name: str, text: str, arguments: list[str], sentence: str
):
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    (tmp_path / name).write_text(text)
    files = [str(tmp_path / argument) if "." in argument else argument for argument in arguments]

    result = up("--data-dir", str(data_dir), "--simulate", "1", *files)

    assert sentence.format(folder=tmp_path) in result.stderr
    assert result.stderr.startswith(f"runai up: {tmp_path}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert result.returncode == 1
    assert [path.name for path in data_dir.iterdir()] == name.split("/")[1:]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param(
            ["[I hub] a", "The GPU service cannot start. RUNAI_CPUS is 'x'.", "[C hub] exited"],
            "runai up: The GPU service cannot start. RUNAI_CPUS is 'x'.",
            id="sentence",
        ),
        pytest.param(
            ["[I hub] a", "KeyError: 1"],
            "The platform could not start. The end of {log}:\n\n[I hub] a\nKeyError: 1",
            id="no sentence",
        ),
    ],
)
def test_failed_platform_start_prints_only_the_services_message(
    tmp_path: Path, lines: list[str], text: str
):
    log = tmp_path / "hub.log"
    log.write_text("\n".join(["CANNOT of an earlier start", *lines]))

    begin = len("CANNOT of an earlier start\n")
    assert failure_text(log, begin) == text.format(log=log)


def test_second_platform_start_on_a_data_directory_names_the_running_platform(tmp_path: Path):
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    lock_fd = directory.lock("http://127.0.0.1:8000/ (process 7)")
    result = up("--data-dir", str(tmp_path))
    os.close(lock_fd)

    assert result.returncode == 1
    assert "already: http://127.0.0.1:8000/ (process 7)." in result.stderr


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "systemd journal"])
def test_passwords_of_first_accounts_are_printed_only_on_a_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
):
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    print_accounts(directory)
    printed = capsys.readouterr().out

    passwords = dict(line.split() for line in directory.passwords.read_text().splitlines())
    assert passwords.keys() == {"admin", "bob", "patty"}
    assert all(name in printed for name in passwords)
    assert [password in printed for password in passwords.values()] == [terminal] * 3
    assert f"The passwords are kept in {directory.passwords}" in printed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_data_directory_of_a_foreign_owner_is_refused_with_a_remedy(tmp_path: Path):
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    other_uid = 54_321
    os.chown(data_dir, other_uid, other_uid)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = up("--port", str(other.getsockname()[1]), "--data-dir", str(data_dir))

    assert result.returncode == 1
    assert result.stderr == (
        f"runai up: {data_dir} belongs to {other_uid}, who could change what the platform runs."
        f" Name another directory with --data-dir, or look through it and take it over:"
        f" chown -R root {data_dir}.\n"
    )
    assert list(data_dir.iterdir()) == []


def test_up_with_an_invalid_option_creates_no_data_directory(tmp_path: Path):
    result = up("--data-dir", str(tmp_path / "data"), "--simulate", "many")

    assert result.returncode == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may start sessions of Unix accounts")
def test_system_users_option_without_root_is_refused(tmp_path: Path):
    result = up("--data-dir", str(tmp_path), "--system-users")

    assert "--system-users needs root" in result.stderr
