"""Request ids, the request log and default security headers (ASGI middleware).

The log has a line for each request that changed something or failed: method, path, status and time.
Queries and headers may hold secrets and are left out.
"""

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runai.hub_service.api.middleware.caller_identification import was_identified
from runai.hub_service.wire import problems

LOG = logging.getLogger("runai.requests")

_SILENT = ("GET", "HEAD", "OPTIONS")
FAILED = 500
MAX_PATH_CHARACTERS = 200
REQUEST_ID_KEY = "runai.request"
"""Key of the id in the ASGI scope."""


class RequestLog:
    """ASGI middleware that assigns a request id and logs the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request under its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = problems.or_new(Headers(scope=scope).get(problems.HEADER))
        scope[REQUEST_ID_KEY] = request_id  # for `_on_unexpected_error`, which runs outside
        token = problems.current.set(request_id)
        began, status = time.perf_counter(), FAILED

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[problems.HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._log_request(scope, status, time.perf_counter() - began)
            problems.current.reset(token)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Log a request: at INFO if it may have changed something, at WARNING if it failed."""
        samples = scope["path"].endswith("/samples")  # of agents, each once a second
        level = logging.DEBUG if scope["method"] in _SILENT or samples else logging.INFO
        if status >= FAILED:
            level = logging.WARNING
        # Quoted and cut: a path is arbitrary text of the client.
        path = scope["path"][:MAX_PATH_CHARACTERS]
        line, extra = "%s %r %d in %.0f ms", {"is_anonymous": not was_identified(scope)}
        LOG.log(level, line, scope["method"], path, status, 1000 * seconds, extra=extra)


_DEFAULT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    # Logs and names are users' text: opened as a page, no script in them runs.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


class SafeHeaders:
    """ASGI middleware that adds the security headers a response has not set."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and add missing headers to its response."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, answer)
