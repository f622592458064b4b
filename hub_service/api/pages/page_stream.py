"""Event stream of a page's changed parts, compressed."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from fastapi import Request
from fastapi.responses import StreamingResponse

from runai.hub_service.api.pages.page_parts import RenderedParts
from runai.hub_service.api.pages.page_reply import compressed, compressible
from runai.hub_service.api.services.event_stream import with_heartbeats
from runai.hub_service.api.services.platform import Platform, Watcher

AT_MOST_EVERY_S = 1.0
REFRESH_EVERY_S = 2.0
"""Seconds between refreshes without an event, for utilization."""


def part_stream(
    request: Request,
    platform: Platform,
    watcher: Watcher,
    render: Callable[[], Awaitable[RenderedParts]],
) -> StreamingResponse:
    """Stream all parts of a page, then the changed ones at most once a second."""
    body = with_heartbeats(_changes(platform, render), b":\n\n", watcher.check, platform.shutdown)
    headers = {"X-Accel-Buffering": "no"}
    if compressible(request):
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        body = compressed(body)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _changes(
    platform: Platform, render: Callable[[], Awaitable[RenderedParts]]
) -> AsyncIterator[bytes]:
    sent = RenderedParts({}, [])
    while True:
        version = platform.controller.changes.version
        async with platform.render_turns.turn():
            now = await render()
        changed = {key: html for key, html in now.parts.items() if sent.parts.get(key) != html}
        if changed or now.rows != sent.rows:
            news = {"parts": changed} | ({"rows": now.rows} if now.rows != sent.rows else {})
            yield b"event: parts\ndata: " + json.dumps(news).encode() + b"\n\n"
            sent = now
        await asyncio.sleep(AT_MOST_EVERY_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_EVERY_S - AT_MOST_EVERY_S):
                await platform.controller.changes.after(version)
