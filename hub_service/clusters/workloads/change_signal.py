"""Signals of changes in the snapshot, for the controller, and of any change, for watchers."""

import asyncio

from runai.hub_service.model.changes import Broadcast


class ChangeSignal:
    """Wakes the controller at a change of the snapshot, and watchers at any change."""

    def __init__(self) -> None:
        """Start with a change, so that the first snapshot is taken at once."""
        self._snapshot_changed = asyncio.Event()
        self._snapshot_changed.set()
        self._broadcast = Broadcast()

    async def changed(self) -> None:
        """Return when the snapshot has changed since the last call of `clear_snapshot_change`."""
        await self._snapshot_changed.wait()

    def clear_snapshot_change(self) -> None:
        """Clear the signal as a snapshot is taken."""
        self._snapshot_changed.clear()

    def wake(self, *, is_snapshot_changed: bool = True) -> None:
        """Wake all watchers, and the controller if the snapshot has changed."""
        if is_snapshot_changed:
            self._snapshot_changed.set()
        self._broadcast.announce()

    async def next_change(self) -> None:
        """Return at the next change of any kind."""
        await self._broadcast.newer_than(self._broadcast.version)
