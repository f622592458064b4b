"""Streams that stay honest: a sign of life while nothing happens.

Knows bytes and time only. Used by the event stream and by followed logs.
"""

import asyncio
from collections.abc import AsyncIterator

__all__ = ["SIGN_OF_LIFE_S", "with_signs_of_life"]

SIGN_OF_LIFE_S = 15.0
"""Clients take three missed ones for a broken connection."""


async def with_signs_of_life(
    body: AsyncIterator[bytes], sign: bytes, every_s: float = SIGN_OF_LIFE_S
) -> AsyncIterator[bytes]:
    """Pass a stream on, adding `sign` whenever it is silent for so long."""
    source = aiter(body)
    while True:
        # No TaskGroup: a generator may be closed by another task than the one that began it.
        piece = asyncio.ensure_future(_next(source))
        try:
            while not (await asyncio.wait({piece}, timeout=every_s))[0]:
                yield sign
        finally:
            piece.cancel()
        result = piece.result()
        if result is None:
            return
        yield result


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
