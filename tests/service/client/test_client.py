"""The client: its requests, its patience, and the types of the errors that it raises.

The service here is a list of prepared answers on a real socket; `test_api.py` tests the API.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from control_plane.certificates import Authority
from runai.hub_service.client import AsyncClient, Client, calls
from runai.hub_service.client.calls import LogDecoder, OverviewDecoder, Retries, WorkloadFilter
from runai.hub_service.wire.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    RunaiError,
    Unauthenticated,
    Unavailable,
)
from runai.hub_service.wire.problems import STATUS, error_from_reply, problem_of
from runai.hub_service.wire.program_schemas import LogLine
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from tls_hub import tls_hub

WHOAMI = {
    "name": "ana",
    "kind": "user",
    "admin": False,
    "groups": [],
    "projects": ["vision"],
    "default_project": "vision",
    "version": "1",
}


@dataclass
class ScriptedServer:
    """A server that sends its answers in order, repeats the last and records its requests."""

    answers: list[tuple[int, Any]]
    requests: list[tuple[str, str, Any, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The `Idempotency-Key` of each request."""
    url: str = ""


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ThreadingHTTPServer] = []

    def serve(*answers: tuple[int, Any]) -> ScriptedServer:
        script = ScriptedServer(list(answers))

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                token = self.headers.get("Authorization", "")
                script.keys.append(self.headers.get("Idempotency-Key", ""))
                script.requests.append((self.command, self.path, body, token))
                more = len(script.answers) > 1
                status, content = script.answers.pop(0) if more else script.answers[0]
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        script.url = f"http://127.0.0.1:{server.server_address[1]}/services/runai/"
        return script

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


UNAVAILABLE_REPLY = (503, b"<html>the proxy says no</html>")


def test_client_call_is_retried_while_the_service_is_unavailable(scripted):
    script = scripted(UNAVAILABLE_REPLY, UNAVAILABLE_REPLY, (200, WHOAMI))
    with Client(script.url, "t") as client:
        assert client.whoami().name == "ana"

    assert len(script.requests) == 3


async def test_async_client_retries_while_the_service_is_unavailable(scripted):
    script = scripted(UNAVAILABLE_REPLY, UNAVAILABLE_REPLY, (200, WHOAMI))
    async with AsyncClient(script.url, "t") as client:
        assert (await client.whoami()).name == "ana"

    assert len(script.requests) == 3


def test_client_gives_up_after_its_patience(scripted):
    script = scripted(UNAVAILABLE_REPLY)
    with Client(script.url, "t", patience_s=0.3) as client, pytest.raises(Unavailable) as error:
        client.whoami()

    assert error.value.code == "unavailable"
    assert 2 <= len(script.requests) <= 5


def test_unconfirmed_submission_is_retried_with_the_same_idempotency_key(scripted):
    script = scripted(UNAVAILABLE_REPLY)
    with Client(script.url, "t", patience_s=0.3) as client, pytest.raises(Unavailable):
        client.submit(SubmitRequest(command=["true"]))

    assert len(script.requests) >= 2
    assert len(set(script.keys)) == 1
    assert len(script.keys[0]) == 32


def test_submission_to_closed_port_raises_unreachable(free_port):
    with (
        Client(f"http://127.0.0.1:{free_port()}/", "t", patience_s=0.3) as client,
        pytest.raises(Unavailable, match="is away") as error,
    ):
        client.submit(SubmitRequest(command=["true"]))

    assert error.value.code == "unreachable"


@pytest.fixture
def authority(tmp_path):
    new_authority = Authority()
    (tmp_path / "ca.crt").write_bytes(new_authority.certificate)
    return new_authority


async def test_sync_and_async_clients_trust_the_configured_certificate_authority(
    authority, tmp_path
):
    ca = str(tmp_path / "ca.crt")
    with tls_hub(authority.server(["hub"], ["127.0.0.1"]), tmp_path) as hub:
        async with AsyncClient(hub.url, "t", ca=ca) as client:
            assert (await client.whoami()).name == "ana"
        with Client(hub.url, "t", ca=ca) as client:
            assert client.whoami().name == "ana"


async def test_client_refuses_certificate_of_an_unknown_authority_without_retries(
    authority, tmp_path
):
    with tls_hub(authority.server(["hub"], ["127.0.0.1"]), tmp_path) as hub:
        with Client(hub.url, "t") as client, pytest.raises(Unavailable) as refused:
            client.whoami()
        with Client(hub.url, "t") as client, pytest.raises(Unavailable) as refused_stream:
            next(client.events())
        async with AsyncClient(hub.url, "t") as client:
            with pytest.raises(Unavailable) as refused_async:
                await client.whoami()

    codes = {error.value.code for error in (refused, refused_stream, refused_async)}
    assert (codes, hub.connections) == ({"untrusted_certificate"}, 3)


def test_client_project_update_sends_only_the_set_fields(scripted):
    view = {"name": "vision", "quota": None, "build_quota": None}
    script = scripted((200, view))
    with Client(script.url, "secret") as client:
        client.put_project("vision", ProjectPut(quota=None, members=["ana"]))

    method, path, body, token = script.requests[0]
    assert (method, path) == ("PUT", "/services/runai/api/v1/projects/vision")
    assert body == {"quota": None, "members": ["ana"]}
    assert token == "Bearer secret"


def test_client_submission_without_a_project_sends_the_default_project(scripted):
    script = scripted((201, {"workloads": []}))
    with Client(script.url, "t", default_project="vision") as client:
        client.submit(SubmitRequest(command=["true"]))
        client.submit(SubmitRequest(command=["true"], project="nlp"))

    assert [body["project"] for _, _, body, _ in script.requests] == ["vision", "nlp"]


UNKNOWN_FIELD_REPLY = (400, {"title": "", "status": 400, "detail": "", "code": "unknown_field"})
CLIENT_NOTES = {
    "code": {"commit": "c" * 40},
    "umask": {"umask": "0002", "uid": 1000, "machine": "0" * 64},
    "environment": {"variables": {"TZ": "UTC"}},
    "no_environment": True,
}


def test_submission_is_retried_without_client_notes_for_an_older_service(scripted):
    script = scripted(UNKNOWN_FIELD_REPLY, (201, {"workloads": []}))
    with Client(script.url, "t") as client:
        client.submit(SubmitRequest(command=["true"], gpus="0.5", **CLIENT_NOTES))

    bodies = [body for _, _, body, _ in script.requests]
    assert bodies == [{"command": ["true"], "gpus": "0.5", **CLIENT_NOTES},
                      {"command": ["true"], "gpus": "0.5"}]  # fmt: skip


async def test_async_submission_is_retried_without_client_notes(scripted):
    script = scripted(UNKNOWN_FIELD_REPLY, (201, {"workloads": []}))
    async with AsyncClient(script.url, "t") as client:
        await client.submit(SubmitRequest(command=["true"], **CLIENT_NOTES))

    assert script.requests[-1][2] == {"command": ["true"]}


@pytest.mark.parametrize("notes", [CLIENT_NOTES, {}], ids=["with notes", "without notes"])
def test_unknown_submission_field_except_client_notes_raises_invalid_request(scripted, notes):
    script = scripted(UNKNOWN_FIELD_REPLY)
    with Client(script.url, "t") as client, pytest.raises(InvalidRequest):
        client.submit(SubmitRequest(command=["true"], saves=True, **notes))

    assert len(script.requests) == (2 if notes else 1)


def test_unknown_reply_fields_of_a_newer_service_are_ignored(scripted):
    script = scripted((200, {**WHOAMI, "shoe_size": 43}))
    with Client(script.url, "t") as client:
        assert client.whoami().name == "ana"


def test_malformed_reply_error_suggests_a_version_mismatch(scripted):
    script = scripted((200, {"name": "ana"}))
    with Client(script.url, "t") as client, pytest.raises(RunaiError) as malformed:
        client.whoami()

    assert malformed.value.code == "unknown_reply"
    assert "same version" in malformed.value.hint


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_error_reply_decodes_to_its_original_error_class(kind):
    error = kind("The GPU is gone.", hint="Buy another.", code="gone")
    problem = problem_of(error)
    arrived = error_from_reply(problem.status, problem.model_dump_json().encode())

    assert type(arrived) is kind
    assert (arrived.message, arrived.hint, arrived.code) == (
        "The GPU is gone.",
        "Buy another.",
        "gone",
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
        (500, Unavailable),
        (400, RunaiError),
        (418, RunaiError),
    ],
)
def test_error_reply_without_json_maps_to_an_error_by_status(status, kind):
    arrived = error_from_reply(status, b"<html>")

    assert type(arrived) is kind
    assert arrived.hint


def test_bad_request_of_a_proxy_suggests_https():
    assert "https" in error_from_reply(400, b"Client sent an HTTP request to an HTTPS server.").hint


def test_client_does_not_retry_a_conflict_reply(scripted):
    problem = problem_of(Conflict("The name exp1 is taken.")).model_dump()
    script = scripted((409, problem))
    with Client(script.url, "t") as client, pytest.raises(Conflict, match="exp1 is taken"):
        client.suspend("vision/exp1")

    assert len(script.requests) == 1


def test_client_retry_delays_sum_up_to_its_patience():
    delays: list[float] = []

    def fail_for_ever(retries: Retries) -> None:
        while True:
            delays.append(retries.delay(Unavailable("away")))

    with pytest.raises(Unavailable):
        fail_for_ever(Retries(3.0))

    assert sum(delays) == pytest.approx(3.0)
    assert all(delay <= 4.0 for delay in delays)
    assert 3 <= len(delays) <= 8


def test_client_retry_delays_leave_the_programs_random_state_unchanged():
    state_before = random.getstate()
    Retries(3.0).delay(Unavailable("away"))

    assert random.getstate() == state_before


OVERVIEW = b'{"at":"2026-01-01T00:00:00Z","projects":[],"workloads":[],"nodes":[]}'


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_event_decoder_accepts_any_split_of_the_stream(piece_bytes):
    stream = (
        b":\n\nevent: overview\ndata: "
        + OVERVIEW
        + b"\n\nevent: other\ndata: x\n\n"
        + (b"event: overview\r\ndata: " + OVERVIEW + b"\r\n\r\n")
    )
    decoder = OverviewDecoder()
    pieces = [stream[i : i + piece_bytes] for i in range(0, len(stream), piece_bytes)]

    assert len([item for piece in pieces for item in decoder.feed(piece)]) == 2


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_log_decoder_splits_lines_only_at_newlines(piece_bytes):
    texts = ["plain", "a\u2028b\x85c\x0bd", "", "ä" * 5]
    stream = b"\n".join(
        LogLine(worker=0, attempt=1, text=text).model_dump_json().encode() for text in texts
    )
    decoder = LogDecoder()
    stream = b"\n" + stream + b"\n"
    pieces = [stream[i : i + piece_bytes] for i in range(0, len(stream), piece_bytes)]

    assert [line.text for piece in pieces for line in decoder.feed(piece)] == texts


@pytest.mark.parametrize("url", ["hub.example.org", "ftp://hub/", "http://", ""])
def test_client_refuses_invalid_url(url):
    with pytest.raises(InvalidRequest, match="is no address"):
        Client(url, "t")


def test_password_in_the_service_url_is_absent_from_the_error(free_port):
    client = Client(f"http://ana:secret@127.0.0.1:{free_port()}/", "t", patience_s=0)
    with client, pytest.raises(Unavailable) as error:
        client.whoami()

    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "Vision", "a" * 25, "a\n", "ü", "\udcff"])
@pytest.mark.parametrize(
    "call",
    [calls.project, calls.delete_project, lambda name: calls.put_project(name, ProjectPut())],
    ids=["show", "delete", "put"],
)
def test_invalid_project_name_is_refused_before_the_request(call, name):
    with pytest.raises(InvalidRequest, match=r"cannot be the name of a project.*at most 24"):
        call(name)


@pytest.mark.parametrize(
    "workload", ["", "exp1", ".", "../x", "a/..", "a/b/c", "a/B", "a/b?c", "a/b#", "a/\udcff", "/b"]
)
@pytest.mark.parametrize(
    "call", [calls.workload, calls.delete, calls.suspend, calls.logs, calls.environment]
)
def test_invalid_workload_id_is_refused_before_the_request(call, workload):
    with pytest.raises(InvalidRequest, match=r"cannot be the name of a workload.*runai list"):
        call(workload)


def test_workload_ids_of_jobs_and_pods_become_url_paths():
    assert calls.workload("vision/exp-1").path == "api/v1/workloads/vision/exp-1"
    assert calls.workload("vision/lab.pod-1.x").path == "api/v1/workloads/vision/lab.pod-1.x"


def test_workload_filter_that_is_not_utf8_is_refused_with_its_field_name():
    with pytest.raises(InvalidRequest, match=r"user is '\\udcff': it is no UTF-8 text"):
        calls.workload_page(WorkloadFilter(user="\udcff"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "http://[",
        "http://x:99999",
        "http://x:y",
        "http://\udcff",
        f"http://{'a' * 99}.de",
    ],
)
def test_client_refuses_url_without_a_valid_host(url):
    with pytest.raises(InvalidRequest, match="is no address of a GPU service"):
        Client(url, "token")


@pytest.mark.parametrize("token", ["\udcff", "ü", "a\nb", "a\x00"])
def test_client_refuses_token_unfit_for_a_header_without_repeating_it(token):
    with pytest.raises(InvalidRequest, match="The token has letters that no token has") as refused:
        Client("http://127.0.0.1:1/", token)

    assert token not in str(refused.value)
