"""Bodies of bounded size, whether or not they say how long they are.

FastAPI reads a body whole before it is looked at: what is too long is refused while it comes. Plain
ASGI; what the refusal says is `app`'s.
"""

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MOST_BODY_BYTES", "BoundedBodies"]

MOST_BODY_BYTES = 8 * 2**20
"""A program of a million letters, each of four bytes, beside its command and environment."""


class BoundedBodies:
    """Refuse to read more of a request than that."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the application does, if it does not read too much."""
        told = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        # Python refuses to read longer numbers, and nobody sends that much.
        is_too_long = len(told) > 18 or (told.isdecimal() and int(told) > MOST_BODY_BYTES)
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            if is_too_long:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BODY_BYTES:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return message

        await self._app(scope, bounded, send)
