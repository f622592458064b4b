"""Settings of notification channels from environment variables; off by default.

Invalid addresses are reported at startup, without any part that may be secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.headerregistry import Address
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from runai.hub_service.wire.errors import InvalidRequest

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LOCAL_PART = re.compile(r"[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?")
_ADDRESS = re.compile(r"""[^\s@<>"(),:;\[\]\\]+@[^\s@<>"(),:;\[\]\\]+""")
_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Address to post to; the URL of many services is itself a secret."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)
    """Key of the signature; "" disables it."""


@dataclass(frozen=True, slots=True)
class MailSettings:
    """Mail server, sender and recipient."""

    host: str
    port: int
    security: Literal["tls", "starttls", "none"]
    sender: str
    to: str
    """An address that contains `{user}`."""
    user: str = ""
    password: str = field(default="", repr=False)

    def address_of(self, user: str) -> str:
        """Return a user's address; "" if the name is not valid in one."""
        if not _LOCAL_PART.fullmatch(user):
            return ""
        return _address(self.to.replace("{user}", user))


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Settings of both channels; None is off."""

    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "NotificationSettings":
        """Read the settings.

        Raises:
            InvalidRequest: a value is invalid; the sentence does not repeat it.
        """
        return cls(_webhook(environ), _mail(environ))


def _webhook(environ: Mapping[str, str]) -> WebhookSettings | None:
    url = environ.get("RUNAI_NOTIFY_WEBHOOK", "")
    if not url:
        return None
    parts = _split(url)
    is_encrypted = parts is not None and parts.scheme == "https"
    is_loopback = parts is not None and parts.scheme == "http" and parts.hostname in LOOPBACK
    if parts is None or not (is_encrypted or is_loopback) or "@" in parts.netloc:
        raise InvalidRequest(
            "RUNAI_NOTIFY_WEBHOOK is no address to post to.",
            hint="It looks like https://HOST/PATH; http only for this machine itself.",
        )
    return WebhookSettings(url, environ.get("RUNAI_NOTIFY_WEBHOOK_SECRET", ""))


def _mail(environ: Mapping[str, str]) -> MailSettings | None:
    server = environ.get("RUNAI_NOTIFY_SMTP", "")
    if not server:
        return None
    parts = _split(server)
    if parts is None or parts.scheme not in _PORTS or parts.path not in {"", "/"}:
        raise InvalidRequest(
            "RUNAI_NOTIFY_SMTP is no mail server.",
            hint="It looks like smtp://USER:PASSWORD@HOST:587 (STARTTLS) or smtps://HOST.",
        )
    host = parts.hostname or ""
    secure: Literal["tls", "starttls"] = "tls" if parts.scheme == "smtps" else "starttls"
    sender, to = environ.get("RUNAI_NOTIFY_FROM", ""), environ.get("RUNAI_NOTIFY_TO", "")
    if not _address(sender):
        raise InvalidRequest(
            "RUNAI_NOTIFY_FROM is no address.", hint="From whom mail is: gpus@lab.example."
        )
    # "{user}" alone: user names are addresses already.
    if to != "{user}" and ("{user}" not in to or not _address(to.replace("{user}", "bob"))):
        raise InvalidRequest(
            "RUNAI_NOTIFY_TO makes no addresses.",
            hint="It has {user} in it, as in {user}@lab.example.",
        )
    return MailSettings(
        host=host,
        port=parts.port or _PORTS[parts.scheme],
        # A server on this machine may lack a certificate, and loopback traffic cannot be
        # intercepted.
        security="none" if secure == "starttls" and host in LOOPBACK else secure,
        sender=sender,
        to=to,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises ValueError if it is not a number
    except ValueError:
        return None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return parts if is_plain and parts.hostname else None


def _address(text: str) -> str:
    """Return the address; "" if it is invalid."""
    if not _ADDRESS.fullmatch(text):
        return ""  # the library fails on many invalid addresses
    try:
        address = Address(addr_spec=text)
    except (ValueError, HeaderParseError, IndexError):
        return ""
    return address.addr_spec if address.username and address.domain else ""
