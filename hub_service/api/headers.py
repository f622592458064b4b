"""What every reply says to browsers: take it for what it is, show it nowhere else, keep no copy.

A page sets its own policy and files their time; what sets nothing gets the strictest. Plain ASGI:
streams pass as they come. Used by `app`.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DEFAULTS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    # Logs and names are other people's text: even opened as a page nothing of it runs.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


class SafeHeaders:
    """Add the headers that a reply has not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the application does, headers aside."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _DEFAULTS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, answer)
