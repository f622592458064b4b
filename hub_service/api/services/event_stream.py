"""Streams that stay honest: a sign of life while nothing happens.

Knows bytes and time only. Used by the event stream and by followed logs.
"""

import asyncio
import random
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from runai.hub_service.wire.errors import RunaiError

T = TypeVar("T")

SIGN_OF_LIFE_S = 15.0
"""Clients take three missed ones for a broken connection."""
CHECK_EVERY_S = 20.0


async def with_signs_of_life(
    body: AsyncIterator[bytes],
    sign: bytes,
    check: Callable[[], Awaitable[None]],
    leaving: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Pass a stream on, adding `sign` whenever it is silent for so long.

    It ends when the service is `leaving`, and when its source or `check`, called now and then,
    raises a RunaiError: what it shows is gone, or the reader may no longer read.
    """
    source = aiter(body)
    told = time.monotonic()
    # Not all at once, those that a restart has had opened again at once: each is a call's work.
    checked = time.monotonic() - random.uniform(0, CHECK_EVERY_S)  # noqa: S311  no secret
    # No TaskGroup: a generator may be closed by another task than the one that began it.
    end = asyncio.ensure_future(leaving.wait())
    piece = asyncio.ensure_future(_next(source))
    try:
        while not end.done():
            # Awake in time for the check, so that nobody reads on for longer than a minute.
            left = max(0.0, checked + CHECK_EVERY_S - time.monotonic())
            silent = max(0.0, told + SIGN_OF_LIFE_S - time.monotonic())
            within = min(silent, left)
            await asyncio.wait({piece, end}, timeout=within, return_when=FIRST_COMPLETED)
            if time.monotonic() - checked >= CHECK_EVERY_S:
                await check()
                checked = time.monotonic()
            if not piece.done():
                if time.monotonic() - told >= SIGN_OF_LIFE_S:  # not because it was checked
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
    """Return what `work` comes to; None when time is up or the service is leaving before that."""
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
