"""The hub's public address, from `runai up` and the admin's own file."""

import errno
import os
import re
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from runai.embedded.settings import Settings
from runai.hub_service.processes.ports import try_port
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest, Unavailable

EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::", "*"})  # noqa: S104 - recognized, not listened on
HTTP_PORT, HTTPS_PORT, MOST_PORT = 80, 443, 65535
BASE_URL = re.compile(r"/([A-Za-z0-9._~-]+/)*")
DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{1,62}|localhost")


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """The proxy's listening address, and the URL that users open."""

    ip: str
    """"" is every address of this machine."""
    port: int
    base_url: str
    """URL prefix, with a slash at both ends."""
    https: bool
    name: str = ""
    """`SCHEME://HOST[:PORT]` set by an admin; "": derived from the address."""

    @property
    def is_public(self) -> bool:
        """Return True if other machines reach it."""
        return self.ip != "localhost" and not self.ip.startswith("127.") and self.ip != "::1"

    @property
    def bind_url(self) -> str:
        """Return JupyterHub's `bind_url`."""
        return f"{self._scheme}://{_bracketed(self.ip)}:{self.port}{self.base_url}"

    @property
    def url(self) -> str:
        """Return the URL for browsers."""
        if self.name:
            return f"{self.name}{self.base_url}"
        host = _bracketed(socket.gethostname() if self.ip in EVERY_ADDRESS else self.ip)
        usual = self.port == (HTTPS_PORT if self.https else HTTP_PORT)
        return f"{self._scheme}://{host}{'' if usual else f':{self.port}'}{self.base_url}"

    def warning(self, *, behind_proxy: bool) -> str:
        """Return a sentence if passwords travel unencrypted, else ""."""
        if not self.is_public or self.https or behind_proxy:
            return ""
        return (
            "Passwords travel unencrypted: other machines reach this address without TLS."
            " Use --domain, --tls-cert or --tls-internal."
        )

    @property
    def _scheme(self) -> str:
        return "https" if self.https else "http"


def public_address(settings: Settings, chosen: Mapping[str, Any]) -> PublicAddress:
    """Combine the options of `runai up` with JupyterHub's settings in the admin's file.

    As in JupyterHub, `ip`, `port` and `base_url` override the parts of `bind_url`; missing
    settings are taken from `runai up`: `port` alone keeps 127.0.0.1.

    Raises:
        InvalidRequest: the settings contradict each other.
    """
    bind = _bind_url(str(chosen.get("bind_url", "")))
    subdomains = str(chosen.get("subdomain_host", ""))
    if subdomains and settings.domain:
        raise InvalidRequest(
            f"--domain {settings.domain} cannot certify the subdomains of {subdomains}.",
            hint="They need a wildcard certificate: give one with --tls-cert and --tls-key.",
        )
    if subdomains and "://" not in subdomains:
        subdomains = f"https://{subdomains}"  # JupyterHub's default scheme
    has_bind_url = bool(bind.scheme)
    path = chosen.get("base_url", bind.path if has_bind_url else settings.base_url)
    port = int(chosen.get("port", (bind.port or 8000) if has_bind_url else settings.port))
    if not 0 < port <= MOST_PORT:
        raise InvalidRequest(
            f"c.JupyterHub.port is {port}, which the proxy cannot listen on.",
            hint=f"Use a whole number from 1 to {MOST_PORT}.",
        )
    ip = str(chosen.get("ip", (bind.hostname or "") if has_bind_url else settings.ip))
    origin = chosen.get("public_url") or subdomains
    if not origin and settings.domain:
        origin = f"https://{settings.domain}{'' if port == HTTPS_PORT else f':{port}'}"
    https = bool(chosen.get("ssl_cert") or settings.tls_cert)
    return PublicAddress(
        ip="" if ip == "*" else ip,
        port=port,
        base_url=base_url("c.JupyterHub.base_url", str(path)),
        https=https or bool(settings.domain) or settings.tls_internal,
        name=_origin(origin),
    )


def base_url(option: str, text: str) -> str:
    """Return a path with a slash at both ends.

    Raises:
        InvalidRequest: it contains a character that URLs encode, `.` or `..`.
    """
    path = f"/{text.strip('/')}/" if text.strip("/") else "/"
    if not BASE_URL.fullmatch(path) or {".", ".."} & {*path.split("/")}:
        raise InvalidRequest(
            f"{option} {text} is not possible.",
            hint="Use a path of letters, digits and -._~, for example /jupyter/.",
        )
    return path


def domain(option: str, text: str) -> str:
    """Return a host name in lower case.

    Raises:
        InvalidRequest: it is no valid host name.
    """
    if not DOMAIN.fullmatch(text.lower()):
        raise InvalidRequest(
            f"{option} {text} is not possible.", hint="Use a name such as gpu.example.org."
        )
    return text.lower()


def host_and_port(url: str) -> str:
    """Return `HOST:PORT` of a URL, with its scheme's default port."""
    parts = urlsplit(url)
    port = parts.port or {"http": HTTP_PORT, "https": HTTPS_PORT}[parts.scheme]
    return f"{_bracketed(parts.hostname or '')}:{port}"


@contextmanager
def claimed_port(host: str, port: int) -> Generator[None]:
    """Check that this process can listen on a port, and keep other platforms from it meanwhile.

    Two Caddys of one account would share the port, as they listen with SO_REUSEPORT, and each would
    answer a part of the requests. The kernel releases the claim with the process.

    Raises:
        RunaiError: as `check_can_listen`.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0runai-starts-on-{port}")
        except OSError as failed:
            raise _port_in_use(host, port) from failed
        check_can_listen(host, port)
        yield


def check_can_listen(host: str, port: int) -> None:
    """Check that this process can listen on a port; an empty host means every address.

    Raises:
        Conflict: another program listens on it.
        Forbidden: this account may not use it.
        Unavailable: the host is no address of this machine.
    """
    plain = "" if host in EVERY_ADDRESS else host.strip("[]")
    try:
        try_port(port, plain)
    except OSError as failed:
        match failed.errno:
            case errno.EADDRINUSE:
                raise _port_in_use(host, port) from failed
            case errno.EACCES:
                raise Forbidden(
                    f"Port {port} needs the right CAP_NET_BIND_SERVICE"
                    f" (process of uid {os.geteuid()}).",
                    hint="Start it as root or by the unit of docs/operations.md, or choose"
                    " --port 8000.",
                ) from failed
            case _:
                raise Unavailable(
                    f"{host} is no address of this machine: {failed.strerror}.",
                    hint="Name another one with --ip.",
                ) from failed


def _port_in_use(host: str, port: int) -> Conflict:
    other = port + 1 if port < MOST_PORT else port - 1
    place = "this machine" if host in EVERY_ADDRESS else host.strip("[]")
    return Conflict(
        f"Port {port} of {place} is taken by another program.",
        hint=f"Choose another one, for example --port {other}.",
    )


def _bind_url(text: str) -> SplitResult:
    """Parse the admin's `bind_url`, "" if unset.

    Raises:
        InvalidRequest: it is no HTTP address.
    """
    with suppress(ValueError):  # an invalid port or IPv6 address
        url = urlsplit(text)
        if not text or (url.scheme in {"http", "https"} and url.port != 0):
            return url
    raise InvalidRequest(
        f"c.JupyterHub.bind_url is {text}, which the proxy cannot listen on.",
        hint="It looks like http://127.0.0.1:8000/.",
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
