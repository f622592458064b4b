"""Authenticate requests: the protocol, shared tokens of the platform's processes, XSRF checks.

Tokens are compared in constant time and appear in no message and no log.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.wire.errors import Forbidden, Unauthenticated

XSRF_COOKIE = "_xsrf"
XSRF_HEADER = "X-XSRFToken"
IDENTIFIED_WITHIN_S = 60.0
"""Limit in seconds to identify a caller. It includes the queue for hub or API server."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Authenticator(Protocol):
    """Identify callers and look up users; answers may be up to a minute old."""

    async def actor(self, request: Request) -> Actor:
        """Return the sender of the request.

        Raises:
            Unauthenticated: the caller is unknown.
            Forbidden: the caller may not use this service, or the request comes from another site.
            Unavailable: the hub does not answer.
        """

    async def person(self, name: str) -> Actor:
        """Return a user by name, for the hub acting on their behalf.

        Raises:
            NotFound: there is no such user.
            Unavailable: the hub does not answer.
        """


def bearer_token(request: Request) -> str | None:
    """Return the token in the Authorization header (`Bearer` or JupyterHub's `token`)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() in {"bearer", "token"} else None


class SharedTokenAuthenticator:
    """Authenticate the platform's own processes by token; delegate users to a next one."""

    def __init__(
        self,
        hub_token: str,
        node_tokens: Mapping[str, str],
        users: Authenticator | None,
        accounts: AccountDirectory | None = None,
    ) -> None:
        """Accept the hub's token, and one token per node for its agent.

        With Unix `accounts`, a user's name with another uid than the known one is refused.
        """
        self._tokens = [(hub_token.encode(), Actor("hub", "hub"))] + [
            (token.encode(), Actor(node, "agent")) for node, token in node_tokens.items()
        ]
        self._users = users
        self._accounts = accounts

    async def actor(self, request: Request) -> Actor:
        """Return the hub, a node's agent, or the user that the next authenticator finds."""
        token = (bearer_token(request) or "").encode()
        for known_token, actor in self._tokens:
            if known_token and hmac.compare_digest(known_token, token):
                return actor
        if self._users is None:
            what = "The token is not known." if token else "Nobody is logged in."
            raise Unauthenticated(what, hint="Send a token; `runai login` gets one.")
        user = await self._users.actor(request)
        if self._accounts is not None:
            await self._accounts.compare(user.name, to_read=_only_reads(request))
        return user

    async def person(self, name: str) -> Actor:
        """Return a user by name; without a JupyterHub, the hub's token vouches for any name."""
        return Actor(name) if self._users is None else await self._users.person(name)


def _only_reads(request: Request) -> bool:
    """Return True if a request changes nothing and asks for no environment, which has secrets."""
    return request.method in _SAFE and not request.url.path.endswith("/environment")


def xsrf_token(secret: bytes, login: str) -> str:
    """Derive the XSRF token that a page must send beside its login cookie."""
    digest = hashlib.sha256(login.encode()).digest()
    return hmac.new(secret, b"xsrf" + digest, "sha256").hexdigest()


def matches_secret(provided: str, expected: str) -> bool:
    """Return True if both are equal; compare in constant time, any Unicode text."""
    # hmac.compare_digest accepts str only if it is ASCII.
    return hmac.compare_digest(provided.encode(errors="replace"), expected.encode())


def check_xsrf(request: Request, expected: str) -> None:
    """Refuse a cookie-authenticated change that another site's page could have sent.

    Two independent checks: the browser reports the same origin, and the page sends the token
    (header X-XSRFToken, or `_xsrf` in the query) that only pages of this origin can read.

    Raises:
        Forbidden: one of the checks fails.
    """
    if request.method in _SAFE:
        return
    if not _same_origin(request):
        raise Forbidden(
            "This request comes from a page of another site.",
            hint="Use the platform's own page, or a token.",
            code="cross_site",
        )
    provided_token = request.headers.get(XSRF_HEADER) or request.query_params.get(XSRF_COOKIE, "")
    if not matches_secret(provided_token, expected):
        raise Forbidden(
            "The page is out of date: it shows no valid _xsrf token.",
            hint="Reload the page.",
            code="xsrf",
        )


def _same_origin(request: Request) -> bool:
    """Return True if the browser says that a page of this origin sent the request."""
    fetch_site = request.headers.get("Sec-Fetch-Site")
    if fetch_site is not None:
        return fetch_site == "same-origin"
    try:
        origin = urlsplit(request.headers.get("Origin", "")).netloc
    except ValueError:  # such as `http://[`
        return False
    # The proxy in front keeps or forwards the browser's Host; a page cannot set either.
    host = request.headers.get("X-Forwarded-Host") or request.headers.get("Host", "")
    return bool(origin) and origin == host.partition(",")[0].strip()
