"""Conversion of a RunaiError to RFC 9457 problem details, and back; request ids.

The server and the client share it; it depends on no web framework.
"""

import re
import secrets
from contextvars import ContextVar
from http import HTTPStatus

from pydantic import ValidationError

from runai.hub_service.wire.base_schema import Problem
from runai.hub_service.wire.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    RunaiError,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from runai.hub_service.wire.printable import printable

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[RunaiError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    TooMany: HTTPStatus.TOO_MANY_REQUESTS,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    RunaiError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""Most specific class first: the first match counts."""

_CLASSES = {status: kind for kind, status in STATUS.items()}
_UNAVAILABLE_STATUSES = (
    # 500 without details is not from our error handler: a stopping server ends long polls with it.
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def problem_of(error: RunaiError) -> Problem:
    """Return the problem details of an error.

    >>> problem_of(NotFound("There is no project vison.", hint="Yours: vision.")).status
    404
    """
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    return Problem(
        title=status.phrase,
        status=status,
        # Sentences repeat values of the request, which are untrusted.
        detail=printable(error.message),
        code=error.code,
        hint=printable(error.hint),
    )


def error_from_reply(status: int, body: bytes, retry_after: str | None = None) -> RunaiError:
    """Rebuild the error from a reply.

    A reply without problem details comes from a proxy or the hub.

    >>> error_from_reply(503, b"<html>").code
    'unavailable'
    """
    try:
        problem = Problem.model_validate_json(body, extra="ignore")
    except ValidationError:
        return _error_without_details(status)
    kind = _CLASSES.get(HTTPStatus(problem.status), RunaiError)
    if issubclass(kind, Unavailable):
        seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
        return kind(problem.detail, hint=problem.hint, code=problem.code, retry_after=seconds)
    return kind(problem.detail, hint=problem.hint, code=problem.code)


def _error_without_details(status: int) -> RunaiError:
    """Return the error for the status of a reply from a proxy or the hub."""
    if status in _UNAVAILABLE_STATUSES:
        return Unavailable(
            "The GPU service is not answering.",
            hint="It may be starting: try again in a few seconds; `runai doctor` says more.",
            retry_after=0.0,
        )
    if status == HTTPStatus.UNAUTHORIZED:
        return Unauthenticated("The token was not accepted.", hint="Run `runai login`.")
    if status == HTTPStatus.FORBIDDEN:
        return Forbidden("The token does not allow this.", hint="Run `runai whoami`.")
    if status == HTTPStatus.NOT_FOUND:
        return NotFound(
            "There is no GPU service at this address.", hint="Check it with `runai doctor`."
        )
    if status == HTTPStatus.BAD_REQUEST:  # as Caddy answers http on a port of https
        return RunaiError(
            f"The GPU service answered with status {status} and no explanation.",
            hint="Has the hub https now? Log in again: runai login https://…",
        )
    return RunaiError(
        f"The GPU service answered with status {status} and no explanation.",
        hint="Its log says more.",
    )


HEADER = "X-Request-ID"
CODE_HEADER = "X-Runai-Code"
"""Header of the hub's refusals that have a code of the platform."""

current: ContextVar[str] = ContextVar("runai_request_id", default="")
"""Id of the current request; "" outside of requests."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_id() -> str:
    """Return a random id of 16 hexadecimal digits."""
    return secrets.token_hex(8)


def or_new(given: str | None) -> str:
    """Return the given id if it is safe to log, else a new one.

    >>> or_new("load-7.3"), or_new("a b") == "a b", len(or_new(None))
    ('load-7.3', False, 16)
    """
    return given if given is not None and _PLAIN.fullmatch(given) else new_id()
