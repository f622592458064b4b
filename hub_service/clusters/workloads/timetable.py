"""Clock of a cluster: it applies the transitions that time alone causes, as they are due."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from runai.hub_service.wire.errors import Unavailable


class Timetable:
    """Due transitions of a cluster's rows."""

    def __init__(
        self, apply_due_transitions: Callable[[], float | None], clock: Callable[[], float]
    ) -> None:
        """Use the cluster's function, which returns when the next transition is due."""
        self._apply_due_transitions = apply_due_transitions
        self._clock = clock
        self._is_changed = asyncio.Event()

    def announce(self) -> None:
        """Announce that another transition may be due first."""
        self._is_changed.set()

    async def run(self) -> NoReturn:
        """Apply transitions as they are due, until cancelled."""
        while True:
            self._is_changed.clear()
            try:
                when = self._apply_due_transitions()
            except Unavailable as away:
                when = self._clock() + away.retry_after
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if when is None else max(0, when - self._clock())):
                    await self._is_changed.wait()
            await asyncio.sleep(0)  # yield: there may be thousands to delete
