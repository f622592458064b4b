"""Event stream of a page's changed parts, compressed."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from fastapi import Request
from fastapi.responses import StreamingResponse

from runai.hub_service.api.pages.page_parts import Rendered
from runai.hub_service.api.pages.page_reply import compressed, compressible
from runai.hub_service.api.services.event_stream import with_signs_of_life
from runai.hub_service.api.services.platform import Platform, Watcher

AT_MOST_EVERY_S = 1.0
LOOK_EVERY_S = 2.0
"""Seconds between refreshes without an event, for utilization."""


def part_stream(
    request: Request, on: Platform, watching: Watcher, render: Callable[[], Awaitable[Rendered]]
) -> StreamingResponse:
    """Stream all parts of a page, then the changed ones at most once a second."""
    body = with_signs_of_life(_changes(on, render), b":\n\n", watching.check, on.leaving)
    headers = {"X-Accel-Buffering": "no"}
    if compressible(request):
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        body = compressed(body)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _changes(on: Platform, render: Callable[[], Awaitable[Rendered]]) -> AsyncIterator[bytes]:
    sent = Rendered({}, [])
    while True:
        version = on.controller.changes.version
        async with on.drawing.turn():
            now = await render()
        changed = {key: html for key, html in now.parts.items() if sent.parts.get(key) != html}
        if changed or now.rows != sent.rows:
            news = {"parts": changed} | ({"rows": now.rows} if now.rows != sent.rows else {})
            yield b"event: parts\ndata: " + json.dumps(news).encode() + b"\n\n"
            sent = now
        await asyncio.sleep(AT_MOST_EVERY_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S - AT_MOST_EVERY_S):
                await on.controller.changes.after(version)
