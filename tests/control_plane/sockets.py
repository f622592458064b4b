"""Orderly shutdown of connections.

A TLS shutdown takes a round trip; a socket still open when its loop is closed would warn during
whichever test runs when it is collected. For code that starts servers and threads in tests.
"""

from __future__ import annotations

import asyncio

from waiting import eventually_async


async def all_closed() -> None:
    """Return when no socket is open but the loop's own."""
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    sockets = loop._selector  # type: ignore[attr-defined]
    await eventually_async(lambda: len(sockets.get_map()) <= 1, what="connections are closed")
