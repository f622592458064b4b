"""Sockets before and after use: ports that are free, and connections that are seen off.

Leaving TLS takes a round trip; what is still open when a loop is closed would warn in whichever
test runs when it is collected. Called by whatever starts servers and threads for tests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from waiting import eventually_async

__all__ = ["all_closed", "free_ports"]


async def all_closed() -> None:
    """Return when no socket is open but the loop's own."""
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    sockets = loop._selector  # type: ignore[attr-defined]
    await eventually_async(lambda: len(sockets.get_map()) <= 1, what="connections are closed")


def free_ports(count: int) -> Sequence[int]:
    """Return as many ports of 127.0.0.1 that nothing listens on; all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
