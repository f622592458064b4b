"""Streams that stay honest: a sign of life while nothing happens.

Knows bytes and time only. Used by the event stream and by followed logs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from runai.hub_service.errors import RunaiError

__all__ = ["SIGN_OF_LIFE_S", "with_signs_of_life"]

SIGN_OF_LIFE_S = 15.0
"""Clients take three missed ones for a broken connection."""
CHECK_EVERY_S = 20.0


async def with_signs_of_life(
    body: AsyncIterator[bytes],
    sign: bytes,
    check: Callable[[], Awaitable[None]],
    every_s: float = SIGN_OF_LIFE_S,
) -> AsyncIterator[bytes]:
    """Pass a stream on, adding `sign` whenever it is silent for so long.

    It ends when its source or `check`, called now and then, raises a RunaiError: what it shows is
    gone, or the reader may no longer read.
    """
    source = aiter(body)
    checked = time.monotonic()
    while True:
        # No TaskGroup: a generator may be closed by another task than the one that began it.
        piece = asyncio.ensure_future(_next(source))
        try:
            arrived = False
            while not arrived:
                arrived = bool((await asyncio.wait({piece}, timeout=every_s))[0])
                if time.monotonic() - checked > CHECK_EVERY_S:
                    await check()
                    checked = time.monotonic()
                if not arrived:
                    yield sign
            result = piece.result()
        except RunaiError:
            return
        finally:
            piece.cancel()
        if result is None:
            return
        yield result


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
