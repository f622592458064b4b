"""Connections that are seen off.

Leaving TLS takes a round trip; what is still open when a loop is closed would warn in whichever
test runs when it is collected. Called by whatever starts servers and threads for tests.
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
