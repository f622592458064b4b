"""Tell everybody who waits that something has changed; nobody misses a change, many wake once.

Knows nothing of what changed. The controller and the cluster announce; streams and long polls wait.
"""

import asyncio


class Broadcast:
    """A counter that can be waited for."""

    def __init__(self) -> None:
        self.version = 0
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Wake everybody who waits for a version later than the last."""
        self.version += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int) -> int:
        """Return the current version as soon as it is later than `version`."""
        while self.version <= version:
            await self._next.wait()
        return self.version
