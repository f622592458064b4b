"""`runai status`: one line for a shell's prompt, soon or not at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper

import pytest

from control_plane.certificates import Authority
from overviews import overview
from runai.hub_service import cli
from runai.hub_service.client import prompt
from runai.hub_service.client.connection import Connection, config_path, write_config
from runai.hub_service.client.status_line import StatusLine
from tls_hub import tls_hub
from waiting import eventually

SLEEP = ("--", "sleep", "600")
NO_GPU = "no GPU · vision 0 of 2.5"
OVERVIEW = overview().model_dump_json().encode()
MAIN = """
import sys
from runai.hub_service.cli import main
try:
    main()
finally:
    print({"click", "pydantic", "httpx", "IPython"} & set(sys.modules), file=sys.stderr)
"""


@pytest.fixture
def patient(monkeypatch):
    """Wait for an answer as long as a busy machine needs."""
    monkeypatch.setattr(prompt, "WITHIN_S", 60.0)


@pytest.fixture
def main(home, monkeypatch, capsys):
    """Run the program `runai`; return its exit code and output."""

    def run(*arguments, **environment):
        monkeypatch.setattr(sys, "argv", ["runai", *arguments])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr()

    return run


@contextmanager
def server_that(answer):
    """Serve one connection with a function of its socket; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/services/runai/"


def never(connection):
    connection.settimeout(20)
    while connection.recv(1000):
        pass


def byte_by_byte(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.2)


def refused(connection):
    body = b'{"detail": "The token t0ken is not known."}'
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)


def damaged(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[{]}")


def whole(connection):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(OVERVIEW)
    connection.sendall(head + OVERVIEW)


@pytest.mark.parametrize("output", [(), ("-o", "text")], ids=["default", "named"])
def test_status_is_one_line(service, bob, main, patient, output):
    bob("submit", "-g", "0.5", *SLEEP)
    eventually(lambda: bob.describe("job-1")["state"] == "running")

    code, printed = main("status", *output, **bob.environment)

    assert code == 0
    assert printed.out.startswith("½ GPU")
    assert printed.out.endswith("· vision 0.5 of 2.5 (simulated)\n")
    assert bob("status").stdout.startswith("½ GPU")


def test_status_in_a_session_is_the_sessions(service, bob, main, patient):
    bob("submit", "lab", "-g", "0.5", *SLEEP)
    bob("submit", "-g", "1", *SLEEP)
    eventually(lambda: bob.describe("lab")["state"] == "running")

    _, printed = main("status", **bob.environment, RUNAI_WORKLOAD="vision/lab")

    assert printed.out.startswith("½ GPU")


@pytest.mark.parametrize("through_click", [False, True], ids=["prompt", "click"])
def test_status_as_json_has_text_title_and_level(service, bob, main, patient, through_click):
    if through_click:
        out = bob("status", "--output", "json").stdout
    else:
        out = main("status", "-o", "json", **bob.environment)[1].out

    assert json.loads(out) == {"text": NO_GPU, "title": "vision 0 of 2.5", "level": "none"}


def test_prompt_imports_no_command_line(service, bob):
    result = subprocess.run(
        [sys.executable, "-c", MAIN, "status"],
        env=dict(bob.environment), capture_output=True, check=False, text=True,
    )  # fmt: skip

    assert result.stderr == "set()\n"


@pytest.mark.parametrize("answer", [never, byte_by_byte, refused, damaged])
def test_status_without_an_answer_prints_nothing(main, answer):
    began = time.monotonic()
    with server_that(answer) as url:
        code, printed = main("status", RUNAI_API_URL=url, JUPYTERHUB_API_TOKEN="t0ken")

    assert (code, printed.out, printed.err) == (1, "", "")
    assert time.monotonic() - began < 5


def test_status_without_a_login_prints_nothing(main, runai):
    assert main("status") == (1, ("", ""))
    result = runai("status")
    assert (result.exit_code, result.output) == (1, "")


def test_status_reads_no_endless_answer(main, patient, monkeypatch):
    environment = {"JUPYTERHUB_API_TOKEN": "t", "JUPYTERHUB_USER": "bob"}
    with server_that(whole) as url:
        assert main("status", RUNAI_API_URL=url, **environment)[0] == 0
    monkeypatch.setattr(prompt, "MAX_ANSWER_BYTES", len(OVERVIEW) - 1)
    with server_that(whole) as url:
        assert main("status", RUNAI_API_URL=url, **environment)[0] == 1


@pytest.mark.tier("test")
def test_status_trusts_the_authority_of_the_login_alone(main, patient, home, tmp_path):
    authority = Authority()
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    with tls_hub(authority.server(["hub"], ["127.0.0.1"]), tmp_path) as hub:
        url = f"{hub.url}services/runai/"
        write_config(Connection(url, "t", ca=str(ca)), config_path())
        trusted = main("status")
        write_config(Connection(url, "t"), config_path())
        untrusted = main("status")

    assert trusted == (0, ("no GPU\n", ""))
    assert untrusted == (1, ("", ""))


def test_line_is_printed_in_any_encoding(monkeypatch):
    line = StatusLine("½ GPU · 34 %", "", "ok")
    output = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(prompt, "fetch_status_line", lambda: line)
    monkeypatch.setattr(sys, "stdout", output)

    assert prompt.print_status_line(as_json=False) == 0
    output.flush()
    assert output.buffer.getvalue() == b"? GPU ? 34 %\n"


def test_interrupted_or_unread_line_is_no_traceback(monkeypatch, capfd):
    def interrupt() -> StatusLine:
        raise KeyboardInterrupt

    monkeypatch.setattr(prompt, "fetch_status_line", lambda: StatusLine("1 GPU", "", "ok"))
    monkeypatch.setattr(sys, "stdout", None)
    assert prompt.print_status_line(as_json=False) == 0
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread:  # noqa: PTH123 - a pipe
        monkeypatch.setattr(sys, "stdout", unread)
        assert prompt.print_status_line(as_json=False) == 0
    monkeypatch.setattr(prompt, "fetch_status_line", interrupt)
    assert prompt.print_status_line(as_json=False) == 130
    assert capfd.readouterr() == ("", "")
