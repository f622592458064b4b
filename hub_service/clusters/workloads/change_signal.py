"""Change signals: for the controller, of changes in the snapshot; for watchers, of any."""

import asyncio

from runai.hub_service.model.changes import Broadcast


class ChangeSignal:
    """Changes since the last snapshot, some of them urgent (`pressing`)."""

    def __init__(self) -> None:
        """Start with an urgent change, so that the first snapshot is taken at once."""
        self._changed, self._pressing = asyncio.Event(), asyncio.Event()
        self._changed.set()
        self._was_pressing = True
        self._anything = Broadcast()

    async def changed(self, *, pressing: bool = False) -> None:
        """Return when the snapshot has changed since the last call of `looked`."""
        await (self._pressing if pressing else self._changed).wait()

    def looked(self) -> bool:
        """Clear the signals as a snapshot is taken; return True if a change was urgent."""
        self._was_pressing = self._pressing.is_set()
        self._changed.clear()
        self._pressing.clear()
        return self._was_pressing

    def is_overtaken(self) -> bool:
        """Return True if an urgent change came after a snapshot without any."""
        return self._pressing.is_set() and not self._was_pressing

    def look_again(self, *, pressing: bool) -> None:
        """Request a snapshot; without `pressing` it may come later, with other changes."""
        self._changed.set()
        if pressing:
            self._pressing.set()

    def announce(self, *, core: bool = True, pressing: bool = True) -> None:
        """Wake all watchers, and the controller if the snapshot has changed (`core`)."""
        if core:
            self.look_again(pressing=pressing)
        self._anything.announce()

    async def next(self) -> None:
        """Return at the next change of any kind."""
        await self._anything.after(self._anything.version)
