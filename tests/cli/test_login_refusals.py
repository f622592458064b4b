"""Refusals and warnings of `runai login` without a hub."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control_plane.certificates import Authority
from runai.hub_service.cli.framework.hub_login import HubLogin, hub_root
from runai.hub_service.client.connection import config_path

URL = "http://127.0.0.1:8000/"


@pytest.mark.parametrize(
    "token_arguments",
    [["--token", "s3cret"], ["--token=s3cret"]],
    ids=["separate words", "one word"],
)
def test_login_refuses_a_token_argument_without_repeating_it(runai, token_arguments):
    for arguments in ([URL, *token_arguments], [*token_arguments, URL]):
        result = runai("login", *arguments)

        assert result.exit_code == 2
        assert "is seen by others (`ps`)" in result.stderr
        assert "`runai login URL --token`" in result.stderr
        assert "s3cret" not in result.output
    assert not config_path().exists()


def test_login_at_an_address_without_a_hub_names_the_address(runai, free_port):
    url = f"http://127.0.0.1:{free_port()}/"

    result = runai("login", url, "--user", "bob", "--password-stdin", stdin="x\n")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: Nothing answers at {url}.\nHint: ")


@pytest.mark.parametrize(
    ("address", "is_overheard"),
    [
        ("http://127.0.0.1:8000", False),
        ("https://hub.example.org", False),
        ("http://hub.example.org", True),
    ],
)
def test_hub_login_flags_a_password_sent_over_http_to_a_remote_host(address, is_overheard):
    with HubLogin(hub_root(address)) as hub:
        assert hub.is_overheard == is_overheard


def _revocation_list() -> bytes:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateRevocationListBuilder(x509.Name([]), now, now)
    signed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(lambda: None, "No such file or directory", id="missing file"),
        pytest.param(lambda: b"", "it has no certificate in PEM", id="empty file"),
        pytest.param(lambda: b"\x30\x82", "it has no certificate in PEM", id="DER instead of PEM"),
        pytest.param(
            lambda: Authority().server(["hub"], []).key, "it has no certificate in PEM", id="key"
        ),
        pytest.param(_revocation_list, "it has no certificate in PEM", id="revocation list"),
    ],
)
def test_login_refuses_a_ca_file_without_a_certificate(runai, tmp_path, content, problem):
    path = tmp_path / "ca.crt"
    if (pem := content()) is not None:
        path.write_bytes(pem)

    result = runai("login", "https://127.0.0.1:9/", "--ca", str(path))

    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: The authority's certificate cannot be read from {path}: {problem}.\n"
        "Hint: Name the PEM file that has it: `runai login URL --ca FILE`.\n"
    )


@pytest.mark.parametrize("address", [URL, "hub.example.org"], ids=["http address", "no scheme"])
def test_login_refuses_a_ca_file_for_an_address_without_tls(runai, address):
    result = runai("login", address, "--ca", "ca.crt")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --ca is for an address with https, and http://")


def test_login_refuses_an_invalid_hub_address_and_names_it(runai):
    assert "'ftp://x' is no address of a JupyterHub." in runai("login", "ftp://x").stderr


class FailingHub(BaseHTTPRequestHandler):
    """A hub with a login form; `replies`: statuses by path that differ from a sound hub's."""

    replies: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        pages = {"/hub/api": b'{"version": "6.0"}', "/hub/login": b'<input type="password">'}
        self.answer(200, pages.get(self.path, b"<h1>500</h1>"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(302, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(self.replies.get(f"{self.command} {self.path}", status))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(body)


class RefusingHub(FailingHub):
    """A hub that refuses every login with a sentence on its page."""

    sentence: ClassVar[str] = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(403, f'<p class="login_error">{self.sentence}</p>'.encode())


@pytest.mark.parametrize(
    ("sentence", "hint"),
    [
        ("Invalid username or password", "Try again; an admin can give you a new one."),
        ("Dora is &lt;dora&gt;.\x1b[2J", "The hub's answer: Dora is <dora>.\\x1b[2J"),
    ],
    ids=["wrong password", "reason of the hub"],
)
def test_refused_login_prints_the_reason_from_the_hubs_login_page(
    runai, monkeypatch, sentence, hint
):
    monkeypatch.setattr(RefusingHub, "sentence", sentence)
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingHub) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        result = runai("login", url, "--user", "Dora", "--password-stdin", stdin="x\n")
        server.shutdown()

    assert f"Hint: {hint}" in result.stderr.splitlines()


@pytest.mark.parametrize(
    ("request_line", "status", "message"),
    [
        *[
            pytest.param("POST /hub/login", status, "does not accept this password", id=f"{status}")
            for status in (200, 401, 403)
        ],
        pytest.param("POST /hub/login", 429, "Too many people log in at the moment", id="429"),
        pytest.param("POST /hub/login", 500, "failed with status 500", id="500"),
        pytest.param("POST /hub/login", 503, "is not ready", id="503"),
        pytest.param("POST /hub/login", 404, "failed with status 404", id="404"),
        pytest.param("GET /hub/login", 500, "failed with status 500", id="login form fails"),
        pytest.param("GET /hub/api", 500, "failed with status 500", id="version request fails"),
        pytest.param("GET /hub/api/user", 500, "failed with status 500", id="user request fails"),
    ],
)
def test_login_distinguishes_a_wrong_password_from_hub_failures(
    runai, monkeypatch, request_line, status, message
):
    monkeypatch.setattr(FailingHub, "replies", {request_line: status})
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingHub) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        result = runai("login", url, "--user", "bob", "--password-stdin", stdin="x\n")
        server.shutdown()

    assert result.exit_code == 1
    lines = result.stderr.splitlines()  # the server's log is among them
    error, hint = (line for line in lines if line.startswith(("Error: ", "Hint: ")))
    assert message in error
    assert ("password" in error) == ("accept" in message)
    assert hint.startswith("Hint: ")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        pytest.param("", "http://localhost:{}/services/runai/", id="no redirect"),
        pytest.param(
            "http://services.localhost:{}/services/runai/health",
            "http://services.localhost:{}/services/runai/",
            id="subdomain of the hub",
        ),
        pytest.param(
            "http://evil.example/services/runai/health",
            "http://localhost:{}/services/runai/",
            id="foreign host",
        ),
        pytest.param(
            "/hub/services/runai/health", "http://localhost:{}/services/runai/", id="path"
        ),
    ],
)
def test_hub_login_finds_the_service_host_of_a_hub_with_subdomains(location: str, expected: str):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if location else 200)
            self.send_header("Location", location.format(server.server_port))
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever).start()
        with HubLogin(f"http://localhost:{server.server_port}/") as hub:
            root = hub.service_root()
        server.shutdown()

    assert root == expected.format(server.server_port)


class HostileHub(BaseHTTPRequestHandler):
    """A hub that logs every user in; `replies` has its other status lines, headers and bodies."""

    replies: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    sound_replies: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {
        "GET /hub/api": (200, {}, b'{"version": "6.0"}'),
        "GET /hub/login": (200, {}, b'<input type="password">'),
        "POST /hub/login": (302, {"Location": "/hub/home"}, b""),
        "GET /hub/api/user": (200, {}, b'{"name": "bob", "scopes": []}'),
        "POST /hub/api/users/bob/tokens": (201, {}, b'{"token": "t"}'),
        "GET /services/runai/api/v1/whoami": (
            200,
            {},
            json.dumps(
                {
                    "name": "bob\x1b]0;owned\x07\x1b[2J\n",
                    "kind": "user",
                    "groups": [],
                    "projects": ["x\x1b[2J"],
                    "default_project": None,
                    "admin": False,
                    "version": "1",
                }
            ).encode(),
        ),
    }

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        name = f"{self.command} {self.path}"
        status, headers, body = (
            self.replies.get(name) or self.sound_replies.get(name) or (200, {}, b"")
        )
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class's name


@contextmanager
def hostile_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), HostileHub) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


DEEPLY_NESTED_JSON = b"[" * 200_000


@pytest.mark.parametrize(
    ("request_line", "reply"),
    [
        pytest.param("GET /hub/api", (200, {}, DEEPLY_NESTED_JSON), id="deeply nested version"),
        pytest.param("GET /hub/api", (200, {}, b"[]"), id="list instead of an object"),
        pytest.param("GET /hub/api", (200, {}, b"x" * 5_000_000), id="reply above the size limit"),
        pytest.param(
            "GET /hub/api",
            (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(5_000_000))),
            id="compressed reply above the size limit",
        ),
        pytest.param(
            "GET /hub/api",
            (200, {"Content-Encoding": "gzip"}, b"plain"),
            id="body without its encoding",
        ),
        pytest.param(
            "GET /hub/api/user", (307, {"Location": "/x"}, b""), id="user request redirected"
        ),
        pytest.param("GET /hub/api/user", (200, {}, DEEPLY_NESTED_JSON), id="deeply nested user"),
        pytest.param(
            "GET /hub/api/user", (200, {}, b'{"name": "bob", "scopes": 1}'), id="scopes are no list"
        ),
        pytest.param(
            "POST /hub/api/users/bob/tokens", (201, {}, b"{}"), id="reply without a token"
        ),
    ],
)
def test_login_refuses_malformed_hub_replies_in_one_sentence(
    runai, monkeypatch, request_line, reply
):
    monkeypatch.setattr(HostileHub, "replies", {request_line: reply})
    with hostile_hub() as url:
        result = runai("login", url, "--user", "bob", "--password-stdin", stdin="x\n")

    assert result.exit_code == 1
    assert f"Error: No JupyterHub answers at {url}.\nHint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_login_greeting_escapes_control_sequences_of_the_hubs_reply(runai):
    with hostile_hub() as url:
        result = runai("login", url, "--user", "bob", "--password-stdin", stdin="x\n")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith(r" as bob\x1b]0;owned\x07\x1b[2J\n. Projects: x\x1b[2J." + "\n")
