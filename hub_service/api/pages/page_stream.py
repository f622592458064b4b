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
    """Yield the parts that changed since the last event; render after changes of the state."""
    sent = RenderedParts({}, [])
    while True:
        version = platform.controller.changes.version
        async with platform.render_turns.turn():
            rendered = await render()
        changed = {key: html for key, html in rendered.parts.items() if sent.parts.get(key) != html}
        if changed or rendered.rows != sent.rows:
            event = {"parts": changed} | (
                {"rows": rendered.rows} if rendered.rows != sent.rows else {}
            )
            yield b"event: parts\ndata: " + json.dumps(event).encode() + b"\n\n"
            sent = rendered
        await asyncio.sleep(AT_MOST_EVERY_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_EVERY_S - AT_MOST_EVERY_S):
                await platform.controller.changes.newer_than(version)
