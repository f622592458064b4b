"""Authenticate JupyterHub's users: programs by token, browsers by OAuth and a signed cookie.

The hub's library (HubOAuth) checks their scopes; the service's own token reads their groups.
Answers are cached for half a minute, so a revoked token works no longer than that. The library is
heavy and imported on first use; `warm` imports it ahead of time.
"""

import asyncio
import hashlib
import importlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runai.hub_service.api.auth.authentication import (
    IDENTIFIED_WITHIN_S,
    XSRF_COOKIE,
    bearer_token,
    check_xsrf,
    matches_secret,
    xsrf_token,
)
from runai.hub_service.api.auth.permissions import (
    ADMIN_SCOPE,
    HUB_ADMIN_SCOPES,
    SUBMIT_SCOPE,
    Actor,
)
from runai.hub_service.api.auth.single_flight import SingleFlight
from runai.hub_service.wire import problems
from runai.hub_service.wire.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
)

CACHE_TTL_S = 30
"""Seconds for which an answer of the hub is cached."""
AT_ONCE = 8
"""Concurrent requests to the hub, of each kind."""
LOGIN_WITHIN_S = 600
LOGIN_DAYS = 14
_PLAIN_PATH = re.compile(r"[\w./-]*(\?[\w=&-]*)?", re.ASCII)
PAGE = 200
"""Users per page of the hub's list."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Address of JupyterHub, and the service's identity there."""

    api_url: str
    api_token: str = field(repr=False)
    service_name: str
    client_id: str
    base_url: str
    """Path of the whole JupyterHub, `/` or `/jupyter/`."""
    callback_url: str
    access_scopes: tuple[str, ...]
    public_url: str = ""
    """Scheme and host in browsers; "" to use the request's own."""


@dataclass(frozen=True, slots=True)
class _Library:
    """Classes and functions of JupyterHub and tornado, imported on first use."""

    oauth: Any
    sign: Any
    unsign: Any
    http_error: type[Exception]


class HubAuthenticator:
    """Identify requests by asking JupyterHub."""

    def __init__(self, hub: HubConfig, *, prefix: str, secret: str) -> None:
        """Serve under the path `prefix`; `secret` signs cookies and outlives restarts."""
        self._hub = hub
        self._prefix = prefix
        self._secret = hashlib.sha256(b"cookies" + secret.encode()).digest()
        self._cookie = hub.client_id
        self._state_cookie = f"{hub.client_id}-oauth-state"
        self._http = httpx.AsyncClient(
            base_url=hub.api_url.rstrip("/") + "/",
            headers={"Authorization": f"token {hub.api_token}"},
            trust_env=False,
            timeout=10,
            event_hooks={"request": [_add_request_id]},
        )
        self._people = SingleFlight[Actor](
            at_once=AT_ONCE, ttl_s=CACHE_TTL_S, clock=_now, within_s=IDENTIFIED_WITHIN_S
        )
        self._tokens = SingleFlight[dict[str, Any] | None](
            at_once=AT_ONCE, ttl_s=CACHE_TTL_S, clock=_now, within_s=IDENTIFIED_WITHIN_S
        )
        self._importing = asyncio.Lock()
        self._library: _Library | None = None

    async def close(self) -> None:
        """Close the connections to the hub."""
        await self._people.close()
        await self._tokens.close()
        await self._http.aclose()

    async def warm(self) -> None:
        """Import the hub's library off the event loop, before the first request needs it."""
        await self._loaded_library()

    # -- callers ---------------------------------------------------------------------------------

    async def actor(self, request: Request) -> Actor:
        """Return the user of the request's token or login cookie."""
        token, xsrf = bearer_token(request), ""
        if by_login := token is None:
            token = await self._login_token(request)
            xsrf = xsrf_token(self._secret, token)
            check_xsrf(request, xsrf)
        user = await self._token_user(token)
        person = await self.person(user["name"])
        scopes = set(user.get("scopes", ()))
        # A program in an admin's notebook sends the notebook's token, which makes no admin unless
        # its scopes include one of the hub's admin scopes. A logged-in browser is the admin.
        carries_rights = by_login or not scopes.isdisjoint(HUB_ADMIN_SCOPES)
        admin = ADMIN_SCOPE in scopes or (person.admin and carries_rights)
        return replace(
            person,
            admin=admin,
            admin_elsewhere=person.admin and not admin,
            may_write=not scopes.isdisjoint({SUBMIT_SCOPE, ADMIN_SCOPE}),
            xsrf=xsrf,
        )

    async def person(self, name: str) -> Actor:
        """Return a user with their groups, read with the service's own token."""
        return await self._people.get(name, lambda: self._fetch_person(name))

    async def _fetch_person(self, name: str) -> Actor:
        # A URL client resolves dots as path segments.
        user = None if name in {".", ".."} else await self._get(f"users/{quote(name, safe='')}")
        if user is None:
            raise NotFound(f"There is no user {name}.", hint="Names are those of JupyterHub.")
        groups = frozenset(user.get("groups", ()))
        return Actor(name=name, admin=bool(user.get("admin")), groups=groups)

    async def _login_token(self, request: Request) -> str:
        """Return the token in the signed login cookie; raise Unauthenticated without one."""
        cookie = request.cookies.get(self._cookie)
        if cookie:
            library = await self._loaded_library()
            token = library.unsign(self._secret, self._cookie, cookie, max_age_days=LOGIN_DAYS)
            if token is not None:
                return str(token.decode())
        raise Unauthenticated(
            "Nobody is logged in.", hint=f"Log in at {self._prefix}, or send a token."
        )

    async def _token_user(self, token: str) -> dict[str, Any]:
        """Return the user of a token; raise if it is unknown, a service's, or lacks the scope."""
        library = await self._loaded_library()
        digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        user = await self._tokens.get(digest, lambda: self._fetch_token_user(token))
        if user is None:
            raise Unauthenticated(
                "The token is not known: it is wrong, revoked or expired.",
                hint="Log in again, or run `runai login`.",
            )
        if user.get("kind") != "user":
            # A service may have any name; it must never pass for the user of that name.
            raise Forbidden("Only users may ask for GPUs, services may not.", code="not_a_user")
        if not library.oauth.check_scopes(library.oauth.access_scopes, user):
            needed = self._hub.access_scopes[0]
            raise Forbidden(
                f"This token does not open the GPU service: it lacks {needed}.",
                hint="Make one with that scope on the hub's token page.",
                code="missing_scope",
            )
        return user

    async def _fetch_token_user(self, token: str) -> dict[str, Any] | None:
        """Fetch the owner of a token from the hub; None: the hub does not know the token."""
        if not (token.isascii() and token.isprintable()):
            return None  # not sent in a header
        reply = await self._request("user", {"Authorization": f"token {token}"})
        if reply.status_code == httpx.codes.FORBIDDEN:
            if code := reply.headers.get(problems.CODE_HEADER):
                raise Forbidden(reply.json()["message"], code=code)
            await self._check_own_token()
            return None
        return dict(_json(reply))

    async def _check_own_token(self) -> None:
        """Raise Unavailable unless the hub accepts the service's own token.

        JupyterHub reports every token as unknown while it cannot read its database, and each token
        while it cannot store its last use. `embedded.hub` answers 503 then; for other hubs
        the service's own token is the test, since its use is to be stored every half minute.
        """
        await self._get("user")

    # -- login by OAuth --------------------------------------------------------------------------

    async def begin_login(self, request: Request, next_path: str) -> Response:
        """Redirect the browser to the hub, which redirects it back to `finish_login`."""
        library = await self._loaded_library()
        state = {"id": secrets.token_urlsafe(16), "next": self._safe_next_path(next_path)}
        query = {
            "client_id": self._hub.client_id,
            "redirect_uri": self._hub.callback_url,
            "response_type": "code",
            "state": state["id"],
        }
        if hasattr(library.oauth, "generate_pkce_code_challenge"):  # JupyterHub >= 6
            verifier, challenge, method = library.oauth.generate_pkce_code_challenge()
            state["verifier"] = verifier
            query |= {"code_challenge": challenge, "code_challenge_method": method}
        url = f"{library.oauth.oauth_authorization_url}?{urlencode(query)}"
        reply = RedirectResponse(url, 302)
        signed = library.sign(self._secret, self._state_cookie, json.dumps(state)).decode()
        self._set_cookie(request, reply, self._state_cookie, signed, LOGIN_WITHIN_S)
        return reply

    async def finish_login(self, request: Request) -> Response:
        """Exchange the hub's code for a token and store it in a signed cookie.

        Raises:
            InvalidRequest: the hub refused, or the login began in another browser.
        """
        library = await self._loaded_library()
        days = LOGIN_WITHIN_S / 86400
        cookie = request.cookies.get(self._state_cookie, "")
        raw = library.unsign(self._secret, self._state_cookie, cookie, max_age_days=days)
        state: dict[str, str] = json.loads(raw) if raw else {}
        code, returned_state = (
            request.query_params.get("code"),
            request.query_params.get("state", ""),
        )
        if not code or not state or not matches_secret(returned_state, state["id"]):
            raise InvalidRequest(
                "The login was not begun in this browser, or took too long.",
                hint=f"Begin again at {self._prefix}.",
                code="login_failed",
            )
        extra = {"code_verifier": state["verifier"]} if "verifier" in state else {}
        try:
            token: str = await library.oauth.token_for_code(code, sync=False, **extra)
        except library.http_error:
            raise InvalidRequest(
                "JupyterHub did not confirm the login.",
                hint=f"Begin again at {self._prefix}.",
                code="login_failed",
            ) from None
        await self._token_user(token)
        reply = RedirectResponse(state["next"], 302)
        reply.delete_cookie(self._state_cookie, path=self._prefix)
        signed = library.sign(self._secret, self._cookie, token).decode()
        self._set_cookie(request, reply, self._cookie, signed, LOGIN_DAYS * 86400)
        xsrf = xsrf_token(self._secret, token)
        self._set_cookie(request, reply, XSRF_COOKIE, xsrf, LOGIN_DAYS * 86400, for_scripts=True)
        return reply

    def _safe_next_path(self, path: str) -> str:
        """Return the path if it is below the prefix, else the prefix: no open redirects."""
        rest = path.removeprefix(self._prefix)
        # Browsers resolve dots as the parent folder, and percent-encoded characters may be dots.
        is_plain = _PLAIN_PATH.fullmatch(rest) and not any(part in rest for part in ("..", "//"))
        is_safe = path.startswith(self._prefix) and is_plain
        return path if is_safe else self._prefix

    def _set_cookie(
        self,
        request: Request,
        reply: Response,
        name: str,
        value: str,
        max_age: int,
        *,
        for_scripts: bool = False,
    ) -> None:
        """Set a cookie of this service; its pages' scripts read it only with `for_scripts`."""
        protocol = request.headers.get("X-Forwarded-Proto") or request.url.scheme
        reply.set_cookie(
            name,
            value,
            max_age=max_age,
            path=self._prefix,
            secure=protocol.partition(",")[0].strip() == "https",
            httponly=not for_scripts,
            samesite="lax",
        )

    # -- the hub ---------------------------------------------------------------------------------

    async def servers(self) -> dict[str, dict[str, Any]]:
        """Return the hub's servers by user and server name.

        Raises:
            Unavailable: the hub does not answer.
        """
        servers_by_user: dict[str, dict[str, Any]] = {}
        while True:
            query = f"users?state=active&limit={PAGE}&offset={len(servers_by_user)}"
            users = await self._get(query) or []
            try:
                servers_by_user |= {user["name"]: user.get("servers") or {} for user in users}
            except (AttributeError, KeyError, TypeError) as error:
                raise _hub_unavailable() from error
            if len(users) < PAGE:
                return servers_by_user

    async def _get(self, path: str) -> Any:  # noqa: ANN401  JSON
        """Return the JSON at a path of the hub's API; None: there is nothing."""
        reply = await self._request(path)
        return None if reply.status_code == httpx.codes.NOT_FOUND else _json(reply)

    async def _request(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Send a request to the hub's API; raise Unavailable without an answer."""
        try:
            reply = await self._http.get(path, headers=headers)
        except httpx.TransportError as error:
            raise _hub_unavailable() from error
        reply.stream = httpx.ByteStream(b"")  # read already; drops a reference cycle per reply
        return reply

    async def _loaded_library(self) -> _Library:
        """Return the hub's library; the first call imports it in a thread."""
        async with self._importing:
            if self._library is None:
                modules = ("jupyterhub.services.auth", "tornado.web")
                auth, web = [
                    await asyncio.to_thread(importlib.import_module, name) for name in modules
                ]
                oauth = auth.HubOAuth(
                    api_url=self._hub.api_url,
                    api_token=self._hub.api_token,
                    base_url=self._prefix,
                    hub_prefix=f"{self._hub.base_url.rstrip('/')}/hub/",
                    hub_host=self._hub.public_url,
                    oauth_client_id=self._hub.client_id,
                    oauth_redirect_uri=self._hub.callback_url,
                    access_scopes=set(self._hub.access_scopes),
                )
                self._library = _Library(
                    oauth, web.create_signed_value, web.decode_signed_value, web.HTTPError
                )
        return self._library


def _now() -> float:
    return time.monotonic()


def _json(reply: httpx.Response) -> Any:  # noqa: ANN401
    """Return the content of an answer.

    Raises:
        Unavailable: the hub failed, or another program answers in its place.
    """
    if not reply.is_success:
        raise _hub_unavailable()
    try:
        return reply.json()
    except ValueError as error:  # such as a proxy's page
        raise _hub_unavailable() from error


def _hub_unavailable() -> Unavailable:
    return Unavailable(
        "JupyterHub cannot say now who you are: it does not answer, or its database fails.",
        hint="Try again in a few seconds; if that lasts, an admin looks at its log and its disk.",
        code="hub_unavailable",
        retry_after=2.0,
    )


async def _add_request_id(request: httpx.Request) -> None:
    """Forward the id of the current request to the hub."""
    if request_id := problems.current.get():
        request.headers[problems.HEADER] = request_id
