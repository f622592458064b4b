"""Addresses of the service and of other servers, as users write them."""

from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import httpx

from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.validation import MAX_QUOTED_CHARACTERS


def address_parts(
    url: str,
    what: str = "a GPU service",
    example: str = "https://hub.example.org/services/runai/",
) -> SplitResult:
    """Parse an address of the service, or of another server.

    Raises:
        InvalidRequest: it is no HTTP address.
    """
    with suppress(ValueError, httpx.InvalidURL):  # brackets, a port, a label that is too long
        parts = urlsplit(url)
        httpx.URL(url)
        host = (parts.hostname or "").encode("idna")
        if parts.scheme in {"http", "https"} and host and parts.port != 0:
            return parts
    escaped = printable(url, MAX_QUOTED_CHARACTERS)
    raise InvalidRequest(f"'{escaped}' is no address of {what}.", hint=f"It looks like {example}.")
