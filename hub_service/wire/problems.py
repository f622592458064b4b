"""The one table between errors and HTTP: a RunaiError as RFC 9457 problem details, and back.

Knows statuses and nothing of frameworks: the server (`app`) and the client share it.
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
"""Most specific class first: the first that fits counts."""

_CLASSES = {status: kind for kind, status in STATUS.items()}
_AWAY = (
    # Without details it is no error of ours: a server that stops answers open long polls so.
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def problem_of(error: RunaiError) -> Problem:
    """Describe an error to a client.

    >>> problem_of(NotFound("There is no project vison.", hint="Yours: vision.")).status
    404
    """
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    return Problem(
        title=status.phrase,
        status=status,
        # Sentences repeat what was asked for, which may be anything.
        detail=printable(error.message),
        code=error.code,
        hint=printable(error.hint),
    )


def error_from_reply(status: int, body: bytes, retry_after: str | None = None) -> RunaiError:
    """Rebuild the error from a reply; one without problem details comes from a proxy or the hub.

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
    if status in _AWAY:
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
    return RunaiError(
        f"The GPU service answered with status {status} and no explanation.",
        hint="Its log says more.",
    )


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
