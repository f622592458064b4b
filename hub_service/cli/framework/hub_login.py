"""Log in to a JupyterHub with a name and a password, as a browser does, and get a token.

Uses the hub's own login form and its API for tokens, so it works with every authenticator that has
a form; hubs with single sign-on have none and their users make a token on the page /hub/token.
"""

import socket
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx

from runai.hub_service.client.tls_trust import untrusted, verification
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, Unauthenticated, Unavailable

SERVICE: Final = "services/runai/"
SCOPES: Final = ("access:services!service=runai", "custom:runai:submit")
ADMIN_SCOPES: Final = ("custom:runai:admin", "admin-ui")
"""One of them makes the token of a hub admin an admin's; of the hub the second opens one page."""
TOKEN_LIFETIME_S: Final = 90 * 24 * 3600
_TIMEOUT_S: Final = 30.0  # a login may ask a slow directory
_XSRF: Final = "_xsrf"
_STARTING: Final = frozenset({502, 503, 504})
"""What a proxy says of a hub that starts."""


def hub_root(url: str) -> str:
    """Return a hub's root address, whichever of its pages was named.

    >>> hub_root("https://hub.example.org/hub/login?next=%2Fhub%2F")
    'https://hub.example.org/'
    >>> hub_root("http://127.0.0.1:8000/services/runai/")
    'http://127.0.0.1:8000/'
    >>> hub_root("http://127.0.0.1:8000/jupyter")
    'http://127.0.0.1:8000/jupyter/'

    Raises:
        InvalidRequest: it is no address.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidRequest(
            f"'{url}' is no address of a JupyterHub.", hint="It looks like http://127.0.0.1:8000."
        )
    path = parts.path
    for page in ("/hub", "/services", "/user"):
        head, found, rest = path.partition(page)
        if found and (not rest or rest.startswith("/")):
            path = head
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path.rstrip('/')}/"


def is_this_machine(url: str) -> bool:
    """Tell whether an address is local: then no proxy of the environment can reach it."""
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}


class HubLogin:
    """One visit to a hub, with a browser's cookies."""

    def __init__(self, root: str, ca: str | None = None) -> None:
        """Visit the hub at `root`, which ends with a slash; `ca` is the file of `login --ca`."""
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
        """Return the page on which people make tokens themselves."""
        return f"{self.root}hub/token"

    @property
    def is_overheard(self) -> bool:
        """Tell whether a password would travel over a network as it is."""
        return not self.root.startswith("https:") and not is_this_machine(self.root)

    def check(self) -> str:
        """Return the hub's version.

        Raises:
            Unavailable: no JupyterHub answers there.
        """
        reply = self._send("GET", "hub/api")
        if reply.status_code in _STARTING:
            raise Unavailable(
                f"The hub at {self.root} is not ready.", hint="Try again in a few seconds."
            )
        try:
            return str(reply.json()["version"])
        except (ValueError, KeyError, TypeError):
            raise Unavailable(
                f"No JupyterHub answers at {self.root}.",
                hint="Give the address that you open in the browser.",
                code="no_hub",
            ) from None

    def service_root(self) -> str:
        """Return the GPU service's address: on the hub's host, or on one below that.

        A hub with subdomains redirects to the latter.
        """
        reply = self._send("GET", f"{SERVICE}health")
        to, own = urlsplit(reply.headers.get("Location", "")), urlsplit(self.root)
        below = str(to.hostname).endswith(f".{own.hostname}") and to.scheme == own.scheme
        root = f"{to.scheme}://{to.netloc}{own.path}" if reply.is_redirect and below else self.root
        return root + SERVICE

    def log_in(self, user: str, password: str) -> None:
        """Send the login form.

        Raises:
            Unauthenticated: the hub does not accept the password.
            InvalidRequest: the hub has no such form.
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
        if not reply.is_redirect:
            raise Unauthenticated(
                f"The hub does not accept this password of {user}.",
                hint="Try again; an admin can give you a new one.",
            )

    def mint_token(self) -> str:
        """Return a new token of the user who has logged in.

        Raises:
            Forbidden: the user may not use the GPU service, or the hub has none.
        """
        # A page visited after the login renews the xsrf cookie for it.
        self._send("GET", "hub/token")
        me: dict[str, Any] = self._send("GET", "hub/api/user").json()
        scopes = [*SCOPES, *[scope for scope in ADMIN_SCOPES if scope in me.get("scopes", ())][:1]]
        reply = self._send(
            "POST",
            f"hub/api/users/{quote(str(me.get('name')), safe='')}/tokens",
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
        return str(reply.json()["token"])

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **content)
        except httpx.TransportError as failed:
            raise untrusted(self.root, failed) or Unavailable(
                f"Nothing answers at {self.root}.",
                hint="Is the address right, and the hub running?",
                code="no_hub",
            ) from failed

    def _xsrf(self) -> str:
        """Return the most specific xsrf cookie: the hub's, not the one of another app beside it."""
        cookies = [c for c in self._http.cookies.jar if c.name == _XSRF]
        cookies.sort(key=lambda cookie: len(cookie.path))
        return cookies[-1].value or "" if cookies else ""
