"""Accept bodies of identified callers only, of bounded size and time (ASGI middleware).

FastAPI reads a body whole before its dependencies identify the caller. Here the application
receives an empty body if the caller is unknown, and answers accordingly.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runai.hub_service.api.middleware.caller_identification import try_identify
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot, unique_keys
from runai.hub_service.wire.errors import InvalidRequest

MOST_BODY_BYTES = 8 * 2**20
"""A program of a million characters of four bytes each, with its command and environment."""
WITHIN_S = 60.0
"""Seconds for a whole body: 8 MiB at 1.2 Mbit/s."""


class BoundedBodies:
    """ASGI middleware that bounds size and time of request bodies, from known callers only."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; close its connection if a body stays unread."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(Request(scope), receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.is_read:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, body.receive, answer)


class _Body:
    """Receiver of one request's body."""

    def __init__(self, request: Request, receive: Receive) -> None:
        length = request.headers.get("content-length", "")
        # No valid length has so many digits, and `int` refuses to parse thousands of them.
        self._is_too_long = len(length) > 18 or (
            length.isdecimal() and int(length) > MOST_BODY_BYTES
        )
        self.is_read = length in {"", "0"} and "transfer-encoding" not in request.headers
        self._request = request
        self._receive = receive
        self._bytes = 0
        self._deadline: float | None = None
        self._is_complete = self._is_refused = False

    async def receive(self) -> Message:
        """Return the next piece, or an empty body if the caller is unknown.

        Raises:
            HTTPException: the body is too long, or takes too long.
        """
        if self._is_complete:
            return await self._receive()  # the disconnect message
        if self._is_refused:
            return {"type": "http.disconnect"}
        if not await try_identify(self._request):
            self._is_refused = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._is_too_long:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + WITHIN_S
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT) from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > MOST_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not message.get("more_body", False):
            self._is_complete = self.is_read = True
        return message


class UniqueKeys(APIRoute):
    """A route that refuses bodies not in UTF-8, or with a key twice, of which the last counts."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the check before it."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if self.body_field is not None:
                _check_json(await request.body())
            return await handle(request)

        return checked


def _check_json(body: bytes) -> None:
    """Raise InvalidRequest for UTF-16, UTF-32 or a key twice; other mistakes are the route's."""
    if not json.detect_encoding(body).startswith("utf-8"):  # `json` would take the others too
        raise InvalidRequest("The body of the request is not in UTF-8.", code="invalid_json")
    try:
        with suppress(RecursionError, UnicodeDecodeError, json.JSONDecodeError):
            json.loads(body, object_pairs_hook=unique_keys)
    except InvalidSnapshot as error:
        raise InvalidRequest(f"In the body {error}.", hint="Leave one of them.") from None
    except ValueError:  # an integer of thousands of digits
        return
