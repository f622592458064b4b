"""HTTP replies of pages: login redirect, security policy, compression, error pages.

A page is streamed while it is rendered, head first, so that the browser fetches scripts and paints
while most rows are still to come.
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
from runai.hub_service.api.middleware.caller_identification import caller_of
from runai.hub_service.api.pages.templates import STYLE_HASHES, templates
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.wire.errors import RunaiError, Unauthenticated
from runai.hub_service.wire.problems import problem_of

_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src {' '.join(STYLE_HASHES)}; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_MIN_GZIP_BYTES = 1000
"""Bytes below which compression saves nothing."""
_FIRST, _NEXT = 16_000, 32_000
"""Characters per chunk: the style and the visible part first, then few large chunks."""
_GZIP = 31
"""zlib's `wbits` for the gzip format with the largest window."""

Values = Callable[[Actor], Awaitable[dict[str, Any]]]


async def page_reply(
    request: Request, platform: Platform, template: str, values: Values
) -> Response:
    """Render a page for the caller, or redirect to the hub's login and back."""
    try:
        caller = await caller_of(request)
    except Unauthenticated:
        path = with_query(request.scope["path"], request)  # such as a chart's range
        back = f"?next={quote(path)}" if path != platform.prefix else ""
        return RedirectResponse(f"{platform.prefix}login{back}", 302)
    status = 200
    try:
        template_values = await values(caller)
    except RunaiError as error:
        problem = problem_of(error)
        status, template = problem.status, "problem.html"
        template_values = {"here": None, "live": "", "error": problem.detail, "hint": problem.hint}
    page = templates(platform.prefix).get_template(template)
    rendered = page.generate(user=caller.name, **template_values)
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
    """Return a path with the request's query string.

    `request.url` is no alternative: it contains the Host that the caller sent.
    """
    query = request.scope["query_string"].decode("latin-1")
    return path + (f"?{query}" if query else "")


async def pieces(rendered: Iterable[str]) -> AsyncIterator[bytes]:
    """Join small texts into chunks, and yield to the event loop between them."""
    buffer: list[str] = []
    length, chunk_length = 0, _FIRST
    for text in rendered:
        buffer.append(text)
        length += len(text)
        if length >= chunk_length:
            yield "".join(buffer).encode()
            buffer, length, chunk_length = [], 0, _NEXT
            # Serves the browser's requests for scripts, which otherwise waited for the last row.
            await asyncio.sleep(0)
    yield "".join(buffer).encode()


async def compressed(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Compress a stream chunk by chunk, each flushed so that the browser can render it."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    async for piece in body:
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def packed(
    request: Request, content: bytes, media_type: str, headers: dict[str, str], status: int = 200
) -> Response:
    """Build a response, compressed if the browser accepts gzip."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if compressible(request) and len(content) >= _MIN_GZIP_BYTES:
        content = gzip.compress(content, 6, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(content, status, headers, media_type)


def compressible(request: Request) -> bool:
    """Return True if the browser accepts gzip."""
    return "gzip" in request.headers.get("Accept-Encoding", "")
