"""A request's body is read only after the headers identify its sender.

Its size and the time to receive it are bounded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from authz import ROWS, request_arguments
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.middleware import request_bodies
from runai.hub_service.api.middleware.request_bodies import MOST_BODY_BYTES
from runai.hub_service.api.services.platform import Platform

SUBMIT = ("POST", "api/v1/workloads")
REPORT = ("POST", "api/v1/nodes/lab/samples")
ANA_TOKEN = {"authorization": "Bearer ana-token"}
MADE_UP_TOKEN = {"authorization": "Bearer made-up-token"}
LONG_BODY = {"content-length": str(MOST_BODY_BYTES)}

CALLERS = {
    "no credential": {},
    "a made-up token": MADE_UP_TOKEN,
    "a made-up token of a pod": {"authorization": "Bearer a.b.c"},
    "a made-up cookie": {"cookie": "service-runai=2|1:0|10:9999999999|3:a|4:x|"},
}
BODIES = {
    "longer than allowed": {"content-length": str(MOST_BODY_BYTES + 1)},
    "of an unknown length": {"transfer-encoding": "chunked"},
    "in parts": {**LONG_BODY, "content-type": "multipart/form-data; boundary=x"},
}


class Login:
    """A login that sends every browser to a hub."""

    async def begin_login(self, request: Request, next_path: str) -> Response:
        return RedirectResponse("/hub/login", 302)

    async def finish_login(self, request: Request) -> Response:
        return RedirectResponse("/hub/login", 302)


@dataclass
class Reply:
    """One answer, and the order in which the caller was identified and the body read."""

    events: list[str] = field(default_factory=list)
    status: int = 0
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""


class AsgiClient:
    """The application, called in a server's place, with an authenticator that can be slow."""

    def __init__(self, platform: Platform) -> None:
        self.prefix = platform.prefix
        self.answers = asyncio.Event()
        self.answers.set()
        self._users: Authenticator = platform.authenticator
        platform.authenticator = self
        self._app = create_app(platform, login=Login())

    async def actor(self, request: Request) -> Actor:
        request.scope["reply"].events.append("identified")
        await self.answers.wait()
        return await self._users.actor(request)

    async def person(self, name: str) -> Actor:
        return await self._users.person(name)

    async def __call__(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        body: bytes = b"{}",
        ends: bool = True,
    ) -> Reply:
        reply, messages = Reply(), [{"type": "http.request", "body": body, "more_body": not ends}]

        async def receive() -> Any:
            reply.events.append("received")
            if messages:
                return messages.pop()
            await (asyncio.sleep(0) if ends else asyncio.Event().wait())
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status, reply.headers = message["status"], Headers(raw=message["headers"])
            reply.body += message.get("body", b"")

        path, _, query = f"{self.prefix}{path}".partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": {},
            "reply": reply,
        }
        await self._app(scope, receive, send)
        return reply


@pytest.fixture
def asgi_client(simulated) -> AsgiClient:
    return AsgiClient(simulated.platform)


# -- an unknown caller -----------------------------------------------------------------------------


def method_and_path(row: dict[str, Any]) -> tuple[str, str]:
    request = request_arguments(row)
    query = "&".join(f"{name}={value}" for name, value in (request["params"] or {}).items())
    return request["method"], f"{request['url']}?{query}"


def refusals(row: dict[str, Any]) -> set[int]:
    if row["who"] == "anybody":
        return {200, 302}
    return {302} if row.get("page") else {401}


CALLS = {method_and_path(row): refusals(row) for row in ROWS} | {
    ("POST", "api/v1/nothing"): {404},
    ("PUT", "nothing"): {404},
    ("POST", "api/v1/workloads/"): {404},
    ("POST", "static/live.js"): {405},
    ("POST", "health"): {405},
    ("HEAD", "api/v1/workloads"): {405},
    ("OPTIONS", "api/v1/workloads"): {405},
}


@pytest.mark.parametrize(
    ("caller", "body"),
    [
        *(pytest.param(caller, LONG_BODY, id=name) for name, caller in CALLERS.items()),
        *(pytest.param(MADE_UP_TOKEN, body, id=f"a body {name}") for name, body in BODIES.items()),
    ],
)
async def test_no_route_reads_the_body_of_an_unknown_caller(asgi_client, caller, body):
    replies = {call: await asgi_client(*call, {**caller, **body}) for call in CALLS}

    read_calls = [call for call, reply in replies.items() if "received" in reply.events]
    unexpected = {e: reply.status for e, reply in replies.items() if reply.status not in CALLS[e]}
    assert (read_calls, unexpected) == ([], {})
    assert {reply.headers.get("connection") for reply in replies.values()} == {"close"}
    assert all(reply.headers["x-request-id"] for reply in replies.values())


@pytest.mark.parametrize("length", [{}, {"content-length": "0"}], ids=["no length", "0"])
async def test_refused_request_without_a_body_leaves_the_connection_open(asgi_client, length):
    reply = await asgi_client(*SUBMIT, {**MADE_UP_TOKEN, **length}, body=b"")

    assert (reply.status, reply.headers.get("connection")) == (401, None)
    assert b'"code":"unauthenticated"' in reply.body


# -- identification --------------------------------------------------------------------------------


async def test_http_caller_is_identified_once_and_before_the_request_body_is_read(asgi_client):
    replies = {
        method_and_path(row): await asgi_client(
            *method_and_path(row), {**ANA_TOKEN, "content-length": "2"}
        )
        for row in ROWS
    }

    counts = {call: reply.events.count("identified") for call, reply in replies.items()}
    assert counts == {method_and_path(row): int(row["who"] != "anybody") for row in ROWS}
    read_first = [call for call, reply in replies.items() if reply.events[:1] == ["received"]]
    assert read_first == []


async def test_requests_beyond_the_bound_of_caller_identifications_are_refused_unread(
    asgi_client, simulated
):
    simulated.platform.identifications = asyncio.Semaphore(2)
    asgi_client.answers.clear()
    async with asyncio.TaskGroup() as tasks:
        slow = [
            tasks.create_task(asgi_client(*REPORT, {**MADE_UP_TOKEN, **LONG_BODY}))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        refused = await asgi_client(*REPORT, {**ANA_TOKEN, **LONG_BODY})
        asgi_client.answers.set()
    later = await asgi_client(*REPORT, {**MADE_UP_TOKEN, **LONG_BODY})

    assert (refused.status, refused.events, refused.headers["retry-after"]) == (503, [], "2")
    assert b'"code":"busy"' in refused.body
    assert [task.result().status for task in slow] == [401, 401]
    assert later.status == 401


# -- a body that never arrives ---------------------------------------------------------------------


async def test_request_body_that_arrives_too_slowly_is_refused(asgi_client, monkeypatch):
    monkeypatch.setattr(request_bodies, "WITHIN_S", 0.01)

    reply = await asgi_client(*SUBMIT, {**ANA_TOKEN, **LONG_BODY}, body=b"{", ends=False)

    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert b'"code":"too_slow"' in reply.body


async def test_event_stream_lasts_longer_than_the_time_limit_of_a_request_body(
    asgi_client, monkeypatch
):
    """A stream waits for the end of its connection on the channel that receives bodies."""
    monkeypatch.setattr(request_bodies, "WITHIN_S", 0.0)

    reply = await asgi_client("GET", "api/v1/events", ANA_TOKEN, body=b"")

    assert (reply.status, reply.events) == (200, ["identified", "received", "received"])
