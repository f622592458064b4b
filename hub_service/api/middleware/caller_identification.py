"""Identify the caller of each request once, from the headers alone.

`request_bodies` needs the result before it receives a body; handlers reuse it.
"""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.middleware.request_limits import CallerLimits, credential_of
from runai.hub_service.wire.errors import RunaiError, Unavailable

MAX_AT_ONCE = 1000
"""Concurrent identifications; during each, the server may buffer some 300 KiB of the request."""
_SCOPE_KEY = "runai.identification"
"""Key in the ASGI scope."""


@dataclass(slots=True)
class _Identification:
    """The outcome of a request's identification."""

    actor: Actor | None = None
    refusal: RunaiError | None = None


async def try_identify(request: Request) -> bool:
    """Identify the caller, once per request; return False if it is refused (by `caller_of`)."""
    identification: _Identification = request.scope.setdefault(_SCOPE_KEY, _Identification())
    if identification.actor is None and identification.refusal is None:
        try:
            identification.actor = await identify(request)
        except RunaiError as refusal:
            identification.refusal = refusal
    return identification.actor is not None


def was_identified(scope: Scope) -> bool:
    """Return True if this request's caller was found to be known and admitted."""
    identification: _Identification | None = scope.get(_SCOPE_KEY)
    return identification is not None and identification.actor is not None


async def caller_of(request: Request) -> Actor:
    """Return the caller that the first identification in this request found.

    Raises:
        Unauthenticated, Forbidden, Unavailable: as `identify`.
    """
    await try_identify(request)
    identification: _Identification = request.scope[_SCOPE_KEY]
    if identification.refusal is not None:
        try:
            raise identification.refusal
        finally:
            # Its traceback references the request: a cycle per refusal.
            identification.refusal = None
    assert identification.actor is not None
    return identification.actor


async def identify(request: Request) -> Actor:
    """Ask the authenticator for the caller.

    Raises:
        Unauthenticated, Forbidden, Unavailable: as the authenticator says.
        Unavailable: too many callers are being identified.
    """
    platform = request.app.state.platform
    authenticator: Authenticator = platform.authenticator
    caller_limits: CallerLimits = platform.caller_limits
    identifications: asyncio.Semaphore = platform.identifications
    if identifications.locked():
        raise Unavailable(
            "Too many callers are being identified.",
            hint="Try again in a few seconds.",
            code="busy",
            retry_after=2.0,
        )
    async with identifications:
        actor = await authenticator.actor(request)
    name, exempt = f"{actor.kind} {actor.name}", actor.kind != "user"
    caller_limits.store(credential_of(request.headers), name, exempt=exempt)
    return actor
