"""How a page leaves: for whom, with which policy, compressed; refusals as pages, too.

A page is sent while it is rendered: its head first, so that the browser fetches the style and
paints while most rows are still to come. Knows requests and templates, not what is on a page.
Used by `page` and `page_stream`.
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.middleware.caller import caller_of
from runai.hub_service.api.pages.templates import STYLE_HASHES, templates
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.wire.errors import RunaiError, Unauthenticated
from runai.hub_service.wire.problems import problem_of

_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src {' '.join(STYLE_HASHES)}; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_WORTH_IT = 1000
"""Bytes below which compressing gains nothing."""
_FIRST, _NEXT = 16_000, 32_000
"""Characters sent at once: the style and what is seen first, then few large pieces."""
_GZIP = 31
"""zlib's word for gzip with the largest window."""

Values = Callable[[Actor], Awaitable[dict[str, Any]]]


async def page_reply(request: Request, on: Platform, template: str, values: Values) -> Response:
    """Render a page for who asks, or go to the hub's login first and come back."""
    try:
        caller = await caller_of(request)
    except Unauthenticated:
        path = with_query(request.scope["path"], request)  # the range of a chart, say
        back = f"?next={quote(path)}" if path != on.prefix else ""
        return RedirectResponse(f"{on.prefix}login{back}", 302)
    status = 200
    try:
        shown = await values(caller)
    except RunaiError as error:
        problem = problem_of(error)
        status, template = problem.status, "problem.html"
        shown = {"here": None, "live": "", "error": problem.detail, "hint": problem.hint}
    rendered = templates(on.prefix).get_template(template).generate(user=caller.name, **shown)
    headers = {
        "Content-Security-Policy": _POLICY,
        "Vary": "Accept-Encoding",
        "X-Accel-Buffering": "no",
    }
    body = pieces(rendered)
    if compressible(request):
        headers["Content-Encoding"] = "gzip"
        body = compressed(body)
    return StreamingResponse(body, status, headers, "text/html; charset=utf-8")


def with_query(path: str, request: Request) -> str:
    """Return a path with the request's query.

    Not of `request.url`, which is made of the caller's Host.
    """
    query = request.scope["query_string"].decode("latin-1")
    return path + (f"?{query}" if query else "")


async def pieces(rendered: Iterable[str]) -> AsyncIterator[bytes]:
    """Put small texts together, and let others have their turn between the pieces."""
    held: list[str] = []
    length, enough = 0, _FIRST
    for text in rendered:
        held.append(text)
        length += len(text)
        if length >= enough:
            yield "".join(held).encode()
            held, length, enough = [], 0, _NEXT
            # Style and scripts are asked for meanwhile; without this they came after the last row.
            await asyncio.sleep(0)
    yield "".join(held).encode()


async def compressed(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Compress a stream piece by piece: each can be read when it arrives."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    async for piece in body:
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def packed(
    request: Request, content: bytes, media_type: str, headers: dict[str, str], status: int = 200
) -> Response:
    """Return a reply, compressed where the browser reads that."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if compressible(request) and len(content) >= _WORTH_IT:
        content = gzip.compress(content, 6, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(content, status, headers, media_type)


def compressible(request: Request) -> bool:
    """Tell whether the browser reads gzip."""
    return "gzip" in request.headers.get("Accept-Encoding", "")
