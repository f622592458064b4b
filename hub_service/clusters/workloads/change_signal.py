"""Who waits for a change: the controller for one that the core sees, people for any.

Kept by `recorded`.
"""

import asyncio

from runai.hub_service.model.changes import Broadcast


class ChangeSignal:
    """What has changed since the last look."""

    def __init__(self) -> None:
        """Begin with something to look at."""
        self._changed, self._pressing = asyncio.Event(), asyncio.Event()
        self._changed.set()
        self._was_pressing = True
        self._anything = Broadcast()

    async def changed(self, *, pressing: bool = False) -> None:
        """Return when anything that the core sees has changed since it was last `looked`."""
        await (self._pressing if pressing else self._changed).wait()

    def looked(self) -> bool:
        """Note that the core sees what there is now; tell whether that was pressing."""
        self._was_pressing = self._pressing.is_set()
        self._changed.clear()
        self._pressing.clear()
        return self._was_pressing

    def is_overtaken(self) -> bool:
        """Tell whether the last look was for nothing pressing, and something that is has come."""
        return self._pressing.is_set() and not self._was_pressing

    def look_again(self, *, pressing: bool) -> None:
        """Have the core look; where it is not `pressing`, with others, or a little later."""
        self._changed.set()
        if pressing:
            self._pressing.set()

    def announce(self, *, core: bool = True, pressing: bool = True) -> None:
        """Wake those who look at anything, and the `core`."""
        if core:
            self.look_again(pressing=pressing)
        self._anything.announce()

    async def next(self) -> None:
        """Return when anything has changed since now."""
        await self._anything.after(self._anything.version)
