"""Streams with heartbeats, rechecked permissions and an end at shutdown."""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from runai.hub_service.wire.errors import RunaiError

T = TypeVar("T")

HEARTBEAT_S = 15.0
"""Seconds between heartbeats; clients take three missed ones for a broken connection."""
CHECK_EVERY_S = 20.0


async def with_heartbeats(
    body: AsyncIterator[bytes],
    heartbeat: bytes,
    check: Callable[[], Awaitable[None]],
    shutdown: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Forward a stream, and add the `heartbeat` after HEARTBEAT_S of silence.

    It ends at the `shutdown` of the service, or when its source or `check`, called every
    CHECK_EVERY_S, raises a RunaiError: the object is gone, or the reader lost its permission.
    """
    source = aiter(body)
    last_sent = time.monotonic()
    # Stagger the first check: a restart reopens all streams together, and each check is a call.
    last_check = time.monotonic() - SystemRandom().uniform(0, CHECK_EVERY_S)
    # No TaskGroup: another task may close a generator than the one that started it.
    end = asyncio.ensure_future(shutdown.wait())
    piece = asyncio.ensure_future(_next(source))
    try:
        while not end.done():
            # Wake in time for the check, so that a revoked reader is cut off within a minute.
            left = max(0.0, last_check + CHECK_EVERY_S - time.monotonic())
            silent = max(0.0, last_sent + HEARTBEAT_S - time.monotonic())
            within = min(silent, left)
            await asyncio.wait({piece, end}, timeout=within, return_when=FIRST_COMPLETED)
            if time.monotonic() - last_check >= CHECK_EVERY_S:
                await check()
                last_check = time.monotonic()
            if not piece.done():
                if (
                    time.monotonic() - last_sent >= HEARTBEAT_S
                ):  # woken for the heartbeat, not for the check
                    yield heartbeat
                    last_sent = time.monotonic()
                continue
            if (result := piece.result()) is None:
                return
            piece = asyncio.ensure_future(_next(source))
            yield result
            last_sent = time.monotonic()
    except RunaiError:
        return
    finally:
        piece.cancel()
        end.cancel()


async def result_before_shutdown(
    shutdown: asyncio.Event, work: Awaitable[T], within_s: float
) -> T | None:
    """Return the result of `work`; None at a timeout or the service's end."""
    working = asyncio.ensure_future(work)
    end = asyncio.ensure_future(shutdown.wait())
    try:
        await asyncio.wait({working, end}, timeout=within_s, return_when=FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        end.cancel()


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
