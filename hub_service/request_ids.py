"""One name for a request on its way: client, service, hub; and in every line that is logged for it.

Standard library only: the client, the agent and the service use it. Ids of others are taken over
where they are plain; nothing else of a header reaches a log.
"""

import re
import secrets
from contextvars import ContextVar

HEADER = "X-Request-ID"

current: ContextVar[str] = ContextVar("runai_request_id", default="")
"""Of the request that is being answered here; "" outside of any."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_id() -> str:
    """Return an id that nobody else has."""
    return secrets.token_hex(8)


def or_new(given: str | None) -> str:
    """Return what was given, if it may stand in a log, else a new one.

    >>> or_new("load-7.3"), or_new("a b") == "a b", len(or_new(None))
    ('load-7.3', False, 16)
    """
    return given if given is not None and _PLAIN.fullmatch(given) else new_id()
