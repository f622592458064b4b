"""Change signals: for the controller, of changes in the snapshot; for watchers, of any."""

import asyncio

from runai.hub_service.model.changes import Broadcast


class ChangeSignal:
    """Changes since the last snapshot."""

    def __init__(self) -> None:
        """Start with a change, so that the first snapshot is taken at once."""
        self._changed = asyncio.Event()
        self._changed.set()
        self._anything = Broadcast()

    async def changed(self) -> None:
        """Return when the snapshot has changed since the last call of `observed`."""
        await self._changed.wait()

    def observed(self) -> None:
        """Clear the signal as a snapshot is taken."""
        self._changed.clear()

    def announce(self, *, core: bool = True) -> None:
        """Wake all watchers, and the controller if the snapshot has changed (`core`)."""
        if core:
            self._changed.set()
        self._anything.announce()

    async def next(self) -> None:
        """Return at the next change of any kind."""
        await self._anything.newer_than(self._anything.version)
