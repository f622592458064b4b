"""Login to a JupyterHub with a name and a password, and creation of a token.

It uses the hub's login form and its API for tokens, so it works with every authenticator that has
a form. Hubs with single sign-on have none: their users create a token on the page /hub/token.
"""

import re
import socket
from html import unescape
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx

from runai.hub_service.client.tls_trust import untrusted, verification
from runai.hub_service.client.transport import address_parts
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, Unauthenticated, Unavailable
from runai.hub_service.wire.printable import printable

SERVICE: Final = "services/runai/"
SCOPES: Final = ("access:services!service=runai", "custom:runai:submit")
ADMIN_SCOPES: Final = ("custom:runai:admin", "admin-ui")
"""Either gives a hub admin's token admin rights here. In the hub the second opens one page."""
TOKEN_LIFETIME_S: Final = 90 * 24 * 3600
_TIMEOUT_S: Final = 30.0  # a login may ask a slow directory
_MOST_REPLY_BYTES: Final = 4 * 2**20
"""Maximum size of a reply; JupyterHub's pages have some 100 KiB."""
_XSRF: Final = "_xsrf"
_USUAL_REFUSAL: Final = "Invalid username or password"
"""JupyterHub's own sentence."""
_STARTING_STATUSES: Final = frozenset({502, 503, 504})
"""Statuses of a proxy while its hub starts."""
_REFUSAL_STATUSES: Final = frozenset({200, 401, 403})
"""Statuses of a login form after a wrong password; some hubs show the form again with 200."""


def hub_root(url: str) -> str:
    """Return a hub's root address from the address of any of its pages.

    >>> hub_root("https://hub.example.org/hub/login?next=%2Fhub%2F")
    'https://hub.example.org/'
    >>> hub_root("http://127.0.0.1:8000/services/runai/")
    'http://127.0.0.1:8000/'
    >>> hub_root("http://127.0.0.1:8000/jupyter")
    'http://127.0.0.1:8000/jupyter/'

    Raises:
        InvalidRequest: it is no HTTP address.
    """
    whole = url if "://" in url else f"http://{url}"
    parts = address_parts(whole, "a JupyterHub", "http://127.0.0.1:8000")
    path = parts.path
    for page in ("/hub", "/services", "/user"):
        head, found, rest = path.partition(page)
        if found and (not rest or rest.startswith("/")):
            path = head
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path.rstrip('/')}/"


def _refusal_reason(page: str) -> str:
    """Return why a login page refuses, "" without another reason than the password."""
    matched = re.search(r'<p class="login_error">([^<]{1,1000})</p>', page)
    reason = printable(unescape(matched[1])) if matched else _USUAL_REFUSAL
    return "" if reason == _USUAL_REFUSAL else f"The hub's answer: {reason}"


def is_this_machine(url: str) -> bool:
    """Return True for a loopback address, which a proxy of the environment cannot reach."""
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}


class HubLogin:
    """One HTTP session with a hub, with cookies like a browser."""

    def __init__(self, root: str, ca: str | None = None) -> None:
        """Connect to the hub at `root`, which ends with a slash. `ca` is the file of `--ca`."""
        self.root = root
        self._http = httpx.Client(
            base_url=root,
            timeout=_TIMEOUT_S,
            trust_env=not is_this_machine(root),
            verify=verification(root, ca),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.close()

    @property
    def token_page(self) -> str:
        """Return the address of the page on which users create tokens."""
        return f"{self.root}hub/token"

    @property
    def is_overheard(self) -> bool:
        """Return True if a password would cross a network unencrypted."""
        return not self.root.startswith("https:") and not is_this_machine(self.root)

    def check(self) -> str:
        """Return the hub's version.

        Raises:
            Unavailable: no JupyterHub answers there.
        """
        return str(self._field(self._send("GET", "hub/api"), "version"))

    def service_root(self) -> str:
        """Return the GPU service's address: on the hub's host, or on a subdomain of it.

        A hub with subdomains redirects to the subdomain.
        """
        reply = self._request("GET", f"{SERVICE}health")  # its status does not matter
        target, hub = urlsplit(reply.headers.get("Location", "")), urlsplit(self.root)
        is_subdomain = str(target.hostname).endswith(f".{hub.hostname}")
        if reply.is_redirect and is_subdomain and target.scheme == hub.scheme:
            return f"{target.scheme}://{target.netloc}{hub.path}{SERVICE}"
        return self.root + SERVICE

    def log_in(self, user: str, password: str) -> None:
        """Submit the login form.

        Raises:
            Unauthenticated: the hub does not accept the password.
            InvalidRequest: the hub has no such form.
            Unavailable: the hub failed, or too many people log in.
        """
        page = self._send("GET", "hub/login")
        if page.status_code != httpx.codes.OK or 'type="password"' not in page.text:
            raise InvalidRequest(
                "This hub has no login form for a name and a password.",
                hint=f"Make a token on {self.token_page} and run `runai login URL --token`.",
                code="no_login_form",
            )
        form = {"username": user, "password": password, _XSRF: self._xsrf()}
        reply = self._send("POST", "hub/login", data=form)
        if reply.is_redirect:
            return
        if reply.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unavailable(
                "Too many people log in at the moment.",
                hint=f"Try again in {reply.headers.get('Retry-After', '10')} seconds.",
                code="too_many_logins",
            )
        if reply.status_code not in _REFUSAL_STATUSES:
            raise self._hub_failure(reply)
        raise Unauthenticated(
            f"The hub does not accept this password of {user}.",
            hint=_refusal_reason(reply.text) or "Try again; an admin can give you a new one.",
        )

    def mint_token(self) -> str:
        """Return a new token of the user that logged in.

        Raises:
            Forbidden: the user may not use the GPU service, or the hub has none.
            Unavailable: the hub's replies are not JupyterHub's.
        """
        # A page load after the login renews the xsrf cookie.
        self._send("GET", "hub/token")
        me = self._send("GET", "hub/api/user")
        user, granted = str(self._field(me, "name")), self._field(me, "scopes")
        if not isinstance(granted, list):
            raise self._no_hub_error()
        scopes = [*SCOPES, *[scope for scope in ADMIN_SCOPES if scope in granted][:1]]
        reply = self._send(
            "POST",
            f"hub/api/users/{quote(user, safe='')}/tokens",
            json={
                "note": f"runai login on {socket.gethostname()}",
                "scopes": scopes,
                "expires_in": TOKEN_LIFETIME_S,
            },
            headers={"X-XSRFToken": self._xsrf()},
        )
        if reply.status_code != httpx.codes.CREATED:
            raise Forbidden(
                "The hub gives you no token for its GPU service.",
                hint="Does it have the service `runai`, and may you use it? Ask its admins.",
                code="no_token",
            )
        return str(self._field(reply, "token"))

    def _field(self, reply: httpx.Response, name: str) -> Any:
        """Return a field of a reply in JSON.

        Raises:
            Unavailable: there is none, so no JupyterHub has answered.
        """
        try:
            return reply.json()[name]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise self._no_hub_error() from None

    def _no_hub_error(self) -> Unavailable:
        return Unavailable(
            f"No JupyterHub answers at {self.root}.",
            hint="Give the address that you open in the browser"
            + (", perhaps with https." if self.root.startswith("http:") else "."),
            code="no_hub",
        )

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Return the hub's reply.

        Raises:
            Unavailable: it does not answer, or failed.
        """
        reply = self._request(method, path, **content)
        if reply.is_server_error:
            raise self._hub_failure(reply)
        return reply

    def _hub_failure(self, reply: httpx.Response) -> Unavailable:
        """Return the error for a reply with a server's error status."""
        if reply.status_code in _STARTING_STATUSES:
            return Unavailable(
                f"The hub at {self.root} is not ready.",
                hint="Try again in a few seconds. Does it last? Then its log says why.",
                code="hub_failed",
            )
        return Unavailable(
            f"The hub at {self.root} failed with status {reply.status_code}.",
            hint="Its admin finds why in its log (hub.log), often a full disk. Your password may be"
            " right.",
            code="hub_failed",
        )

    def _request(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Return the hub's reply of any status.

        Raises:
            Unavailable: nothing answers, or no JupyterHub.
        """
        try:
            with self._http.stream(method, path, **content) as reply:
                body = bytearray()
                for chunk in reply.iter_bytes():
                    body += chunk
                    if len(body) > _MOST_REPLY_BYTES:
                        raise self._no_hub_error()
                reply.headers.pop("Content-Encoding", None)  # it is decoded
                return httpx.Response(
                    reply.status_code,
                    headers=reply.headers,
                    content=bytes(body),
                    request=reply.request,
                )
        except httpx.DecodingError:
            raise self._no_hub_error() from None
        except httpx.TransportError as failed:
            raise untrusted(self.root, failed) or Unavailable(
                f"Nothing answers at {self.root}.",
                hint="Is the address right, and the hub running?",
                code="no_hub",
            ) from failed

    def _xsrf(self) -> str:
        """Return the xsrf cookie with the longest path: the hub's, not another application's."""
        cookies = [c for c in self._http.cookies.jar if c.name == _XSRF]
        cookies.sort(key=lambda cookie: len(cookie.path))
        return cookies[-1].value or "" if cookies else ""
