"""How a page leaves: for whom, with which policy, compressed; refusals as pages, too.

Knows requests and templates, not what is on a page. Used by `page`.
"""

import gzip
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from runai.hub_service.api.permissions import Actor
from runai.hub_service.api.platform import Platform
from runai.hub_service.api.problems import problem_of
from runai.hub_service.api.templates import templates
from runai.hub_service.errors import RunaiError, Unauthenticated

__all__ = ["compressible", "packed", "page_reply"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_WORTH_IT = 1000
"""Bytes below which compressing gains nothing."""

Values = Callable[[Actor], Awaitable[dict[str, Any]]]


async def page_reply(request: Request, on: Platform, template: str, values: Values) -> Response:
    """Render a page for who asks, or go to the hub's login first and come back."""
    try:
        caller = await on.authenticator.actor(request)
    except Unauthenticated:
        path = request.url.path
        back = f"?next={quote(path)}" if path != on.prefix else ""
        return RedirectResponse(f"{on.prefix}login{back}", 302)
    status = 200
    try:
        shown = await values(caller)
    except RunaiError as error:
        problem = problem_of(error)
        status, template = problem.status, "problem.html"
        shown = {"here": None, "live": "", "error": error.message, "hint": error.hint}
    text = templates(on.prefix).get_template(template).render(user=caller.name, **shown)
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return packed(request, text.encode(), "text/html; charset=utf-8", headers, status)


def packed(
    request: Request, content: bytes, media_type: str, headers: dict[str, str], status: int = 200
) -> Response:
    """Return a reply, compressed where the browser reads that."""
    headers = {**headers, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    if compressible(request) and len(content) >= _WORTH_IT:
        content = gzip.compress(content, 6, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(content, status, headers, media_type)


def compressible(request: Request) -> bool:
    """Tell whether the browser reads gzip."""
    return "gzip" in request.headers.get("Accept-Encoding", "")
