"""Trusted certificates of clients, and the error for an untrusted one."""

import ssl
from urllib.parse import urlsplit

from runai.hub_service.wire.errors import InvalidRequest, Unavailable

# X509_V_ERR_… that no trusted authority cures: not yet valid, expired, wrong name or address.
_VALIDITY_ERRORS = frozenset({9, 10, 62, 64})


def verification(url: str, ca: str | None) -> ssl.SSLContext | bool:
    """Return httpx's `verify` for an address; a `ca` file replaces the system's authorities.

    Raises:
        InvalidRequest: the file cannot be read, or has no certificate.
    """
    if urlsplit(url).scheme == "http":
        # Without TLS there is nothing to verify, and loading the certificates is slow.
        return False
    if not ca:
        return True
    problem = "it has no certificate in PEM"
    try:
        context = ssl.create_default_context(cafile=ca)
        if context.cert_store_stats()["x509"]:  # else it has revocation lists alone
            return context
    except ssl.SSLError:
        pass
    except (OSError, ValueError) as failed:
        problem = getattr(failed, "strerror", None) or str(failed)
    raise InvalidRequest(
        f"The authority's certificate cannot be read from {ca}: {problem}.",
        hint="Name the PEM file that has it: `runai login URL --ca FILE`.",
        code="unreadable_ca",
    )


def untrusted(url: str, failure: BaseException) -> Unavailable | None:
    """Return the error to raise if the server's certificate caused the failure, else None."""
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if cause.verify_code in _VALIDITY_ERRORS:
        hint = "Use the address that it is for, or ask the hub's admins for a valid one."
    else:
        hint = (
            "Name the authority that signed it: `runai login URL --ca FILE`. Of a hub by"
            " `runai up --tls-internal` that is ca.crt in the data directory on its machine."
        )
    why = cause.verify_message.rstrip(".")
    return Unavailable(
        f"The certificate of {urlsplit(url).hostname} is not trusted: {why}.",
        hint=hint,
        code="untrusted_certificate",
    )
