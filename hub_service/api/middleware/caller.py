"""Identify the caller of each request once, from the headers alone.

`request_bodies` needs the result before it receives a body; handlers reuse it.
"""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.middleware.request_limits import Callers, credential_of
from runai.hub_service.wire.errors import RunaiError, Unavailable

MAX_AT_ONCE = 1000
"""Concurrent identifications; during each, the server may buffer some 300 KiB of the request."""
_FOUND = "runai.identification"
"""Key in the ASGI scope."""


@dataclass(slots=True)
class _Identification:
    """The outcome of a request's identification."""

    actor: Actor | None = None
    refusal: RunaiError | None = None


async def is_identified(request: Request) -> bool:
    """Return True if the caller is known and admitted; otherwise `caller_of` raises why."""
    found: _Identification = request.scope.setdefault(_FOUND, _Identification())
    if found.actor is None and found.refusal is None:
        try:
            found.actor = await identify(request)
        except RunaiError as refusal:
            found.refusal = refusal
    return found.actor is not None


def was_identified(scope: Scope) -> bool:
    """Return True if this request's caller was found to be known and admitted."""
    found: _Identification | None = scope.get(_FOUND)
    return found is not None and found.actor is not None


async def caller_of(request: Request) -> Actor:
    """Return the caller that the first identification in this request found.

    Raises:
        Unauthenticated, Forbidden, Unavailable: as `identify`.
    """
    await is_identified(request)
    found: _Identification = request.scope[_FOUND]
    if found.refusal is not None:
        try:
            raise found.refusal
        finally:
            found.refusal = None  # its traceback references the request: a cycle per refusal
    assert found.actor is not None
    return found.actor


async def identify(request: Request) -> Actor:
    """Ask the authenticator for the caller.

    Raises:
        Unauthenticated, Forbidden, Unavailable: as the authenticator says.
        Unavailable: too many callers are being identified.
    """
    platform = request.app.state.platform
    authenticator: Authenticator = platform.authenticator
    callers: Callers = platform.callers
    under_way: asyncio.Semaphore = platform.identifications
    if under_way.locked():
        raise Unavailable(
            "Too many callers are being identified.",
            hint="Try again in a few seconds.",
            code="busy",
            retry_after=2.0,
        )
    async with under_way:
        actor = await authenticator.actor(request)
    name, exempt = f"{actor.kind} {actor.name}", actor.kind != "user"
    callers.store(credential_of(request.headers), name, exempt=exempt)
    return actor
