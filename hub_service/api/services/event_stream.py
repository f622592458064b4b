"""Streams with heartbeats, rechecked permissions and an end at shutdown."""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from runai.hub_service.wire.errors import RunaiError

T = TypeVar("T")

SIGN_OF_LIFE_S = 15.0
"""Seconds between heartbeats; clients take three missed ones for a broken connection."""
CHECK_EVERY_S = 20.0


async def with_signs_of_life(
    body: AsyncIterator[bytes],
    sign: bytes,
    check: Callable[[], Awaitable[None]],
    leaving: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Forward a stream, and add the heartbeat `sign` after SIGN_OF_LIFE_S of silence.

    It ends when the service is `leaving`, or when its source or `check`, called every
    CHECK_EVERY_S, raises a RunaiError: the object is gone, or the reader lost its permission.
    """
    source = aiter(body)
    told = time.monotonic()
    # Stagger the first check: a restart reopens all streams together, and each check is a call.
    checked = time.monotonic() - SystemRandom().uniform(0, CHECK_EVERY_S)
    # No TaskGroup: another task may close a generator than the one that started it.
    end = asyncio.ensure_future(leaving.wait())
    piece = asyncio.ensure_future(_next(source))
    try:
        while not end.done():
            # Wake in time for the check, so that a revoked reader is cut off within a minute.
            left = max(0.0, checked + CHECK_EVERY_S - time.monotonic())
            silent = max(0.0, told + SIGN_OF_LIFE_S - time.monotonic())
            within = min(silent, left)
            await asyncio.wait({piece, end}, timeout=within, return_when=FIRST_COMPLETED)
            if time.monotonic() - checked >= CHECK_EVERY_S:
                await check()
                checked = time.monotonic()
            if not piece.done():
                if (
                    time.monotonic() - told >= SIGN_OF_LIFE_S
                ):  # woken for the heartbeat, not for the check
                    yield sign
                    told = time.monotonic()
                continue
            if (result := piece.result()) is None:
                return
            piece = asyncio.ensure_future(_next(source))
            yield result
            told = time.monotonic()
    except RunaiError:
        return
    finally:
        piece.cancel()
        end.cancel()


async def unless(leaving: asyncio.Event, work: Awaitable[T], within_s: float) -> T | None:
    """Return the result of `work`; None at a timeout or the service's end."""
    working = asyncio.ensure_future(work)
    end = asyncio.ensure_future(leaving.wait())
    try:
        await asyncio.wait({working, end}, timeout=within_s, return_when=FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        end.cancel()


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
