"""JupyterHub's proxy, inside JupyterHub's own process: nothing to install, nothing to supervise.

Keeps JupyterHub's `Proxy` contract (routes, start, stop, last activity) and serves the public
address. What happens to one request is in `runai.embedded.forward`; which server it goes to in
`runai.embedded.routes`. Chosen by `c.JupyterHub.proxy_class = "runai-embedded"`; docs/adr/0006 says
when to take another one.
"""

import logging
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from jupyterhub.proxy import Proxy
from jupyterhub.utils import make_ssl_context, url_path_join

from runai.embedded.forward import (
    MAX_HEADER_BYTES,
    TargetGone,
    forward_request,
    forward_websocket,
    is_websocket,
    new_session,
)
from runai.embedded.routes import Route, RouteTable
from runai.hub_service.printable import printable

__all__ = ["EmbeddedProxy"]

MOST_OF_A_PATH = 200  # in a line of the log
SERVER_LOG = logging.getLogger("aiohttp.server")
SHUTDOWN_SECONDS = 1.0  # open event streams and websockets end with the hub anyway

_STARTING_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Starting</title>
<meta http-equiv="refresh" content="1"></head><body style="font-family: sans-serif; margin: 4em">
<h1>The platform is starting</h1><p>This page loads again by itself.</p></body></html>"""


class EmbeddedProxy(Proxy):
    """Serve the public address from the hub's own event loop; traffic ends when the hub does."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        self._table = RouteTable()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None

    # -- JupyterHub's contract -------------------------------------------------------------------

    async def start(self) -> None:
        """Listen on the public address."""
        address = urlsplit(self.public_url)
        server = web.Server(
            self._answer,
            handler_cancellation=True,  # a browser that left ends its request behind us too
            access_log=None,  # the servers behind us log their requests
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._session = new_session()
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            address.hostname or None,
            address.port or {"http": 80, "https": 443}[address.scheme],
            ssl_context=self._ssl_context(),
        )
        await site.start()
        self.log.info("Proxy listening on %s", self.public_url)

    async def stop(self) -> None:
        """Stop listening and drop what is under way; a repeat does nothing."""
        runner, self._runner = self._runner, None
        session, self._session = self._session, None
        if runner is not None:
            await runner.cleanup()
        if session is not None:
            await session.close()

    async def add_route(self, routespec: str, target: str, data: dict[str, Any] | None) -> None:
        """Send requests below `routespec` to `target` from now on."""
        self._table.add(self.validate_routespec(routespec), target, data or {})

    async def delete_route(self, routespec: str) -> None:
        """Forget a route; one that is gone already is what was asked for."""
        if not self._table.remove(self.validate_routespec(routespec)):
            self.log.debug("Route %s was deleted already", routespec)

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        """Return all routes with the time of their last activity."""
        return self._table.views()

    # -- requests --------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._table.match(request.headers.get(hdrs.HOST, ""), request.raw_path)
        session = self._session
        if route is None or session is None:
            return web.Response(
                status=503,
                text=_STARTING_PAGE,
                content_type="text/html",
                headers={"Retry-After": "1"},
            )
        if not request.raw_path.startswith("/"):
            return web.Response(status=400, text="Ask for a path, such as /hub/login.\n")
        route.touch()
        try:
            return await self._forward(request, session, route)
        except TargetGone as gone:
            self.log.warning("503 %s %s: %s", request.method, _logged(request), gone)
            return await self._server_is_gone(request, session)
        except ConnectionResetError:
            # The browser left in the middle: nobody is there to be answered.
            self.log.debug("499 %s %s", request.method, _logged(request))
            return web.Response(status=499)
        except aiohttp.ClientError as wrong:
            # Not the error's text: it may quote what the server sent.
            name = type(wrong).__name__
            self.log.warning("502 %s %s: %s", request.method, _logged(request), name)
            return web.Response(status=502, text="The server's answer could not be read.\n")

    async def _forward(
        self, request: web.BaseRequest, session: aiohttp.ClientSession, route: Route
    ) -> web.StreamResponse:
        target = route.target.rstrip("/")
        if is_websocket(request):
            return await forward_websocket(request, session, target, route.touch)
        response = await forward_request(request, session, target)
        route.touch()  # a long download is activity until its end
        return response

    async def _server_is_gone(
        self, request: web.BaseRequest, session: aiohttp.ClientSession
    ) -> web.Response:
        """Show the hub's own page: what happened, and the link that starts the server again."""
        page = url_path_join(self.hub.url, "error", "503") + f"?url={quote(request.path)}"
        try:
            async with session.get(
                page,
                headers={hdrs.HOST: request.headers.get(hdrs.HOST, "")},
                timeout=aiohttp.ClientTimeout(total=5),
            ) as answer:
                body = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            body = "<h1>503</h1><p>The server that should answer here does not run.</p>"
        response = web.Response(status=503, text=body, content_type="text/html")
        response.headers[hdrs.CACHE_CONTROL] = "no-store"
        return response

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not self.ssl_key:
            return None
        context: ssl.SSLContext = make_ssl_context(
            self.ssl_key, self.ssl_cert, purpose=ssl.Purpose.CLIENT_AUTH
        )
        return context


def _logged(request: web.BaseRequest) -> str:
    """Return a request's path as a log may have it, without its query."""
    return printable(request.raw_path.partition("?")[0], MOST_OF_A_PATH)


def _is_error_of_ours(record: logging.LogRecord) -> bool:
    """Return False for requests that are no HTTP: any number of them may be sent.

    They are logged at the level of debugging, as aiohttp does for some of them.
    """
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return SERVER_LOG.isEnabledFor(logging.DEBUG)
    return True


SERVER_LOG.addFilter(_is_error_of_ours)
