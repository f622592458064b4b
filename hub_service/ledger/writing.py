"""What waits to be written, and what becomes of it: written, kept for the next time, or dropped.

It is kept while the database is away, and dropped for good when another ledger has taken it
(`owner`). Where it is away from the start only what happened is kept: numbers count from what is in
it. Used by `ledger`, whose the numbers are.
"""

import asyncio
import logging
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from runai.hub_service.errors import Unavailable
from runai.hub_service.ledger.owner import Taken
from runai.hub_service.ledger.reading import Reader
from runai.hub_service.ledger.store import Batch, Store, Stored

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 100_000


class Writer:
    """The batch that is next, and whether it may still be written."""

    def __init__(self, store: Store, reader: Reader) -> None:
        """Begin with an empty batch; what goes wrong is told to the reader, who is asked."""
        self._store = store
        self._reader = reader
        self.batch = Batch()
        self.is_lost = False
        """Another ledger has the database: nothing of this one is written any more."""

    def take(self) -> Stored:
        """Take the database, and return what it has: nothing where it is away.

        Raises:
            Unavailable: it will not have us, however long we wait.
        """
        try:
            stored = self._store.take()
        except Unavailable as away:
            if away.code != "history_away":
                raise
            self._is_away(away)
            return Stored()
        self._is_there()
        return stored

    async def take_later(self) -> Stored | None:
        """Try again, and return what the database has; None: it is still away.

        While we serve nothing about it is a reason to end: that is said at the next start.
        """
        self._without_numbers()
        try:
            stored = await asyncio.to_thread(self._store.take)
        except (SQLAlchemyError, Unavailable) as away:
            self._is_away(away)
            return None
        self._without_numbers()  # what came while we waited
        self._is_there()
        return stored

    async def write(self) -> None:
        """Write the batch, in a thread; what cannot be written is kept for the next time."""
        batch, self.batch = self.batch, Batch()
        try:
            if batch and not self.is_lost:
                await asyncio.to_thread(self._store.write, batch)
                self._reader.trouble = ""
        except Taken:
            self._lose()
        except SQLAlchemyError as error:
            self._reader.trouble = type(error).__name__
            log.warning("usage could not be written, trying again: %s", type(error).__name__)
            self._keep(batch)
        except asyncio.CancelledError:
            # The thread goes on; writing the same once more changes nothing but its events.
            batch.events = []
            self._keep(batch)
            raise

    def write_rest(self) -> None:
        """Write the batch, for the last time."""
        batch, self.batch = self.batch, Batch()
        if batch:
            self._now("the last usage could not be written", lambda: self._store.write(batch))

    def drop_old(self, now: float) -> None:
        """Delete what is past its time."""
        self._now("old usage could not be dropped", lambda: self._store.drop_old(now))

    def _now(self, otherwise: str, change: Callable[[], None]) -> None:
        if self.is_lost or not self._reader.is_open:
            return
        try:
            change()
        except Taken:
            self._lose()
        except SQLAlchemyError as error:
            log.warning("%s: %s", otherwise, type(error).__name__)

    def _is_there(self) -> None:
        self._reader.is_open, self._reader.trouble = True, ""

    def _is_away(self, away: Exception) -> None:
        self._reader.trouble = type(away.__cause__ or away).__name__
        log.warning(
            "the history could not be opened, trying again: %s",
            away if isinstance(away, Unavailable) else self._reader.trouble,
        )

    def _without_numbers(self) -> None:
        self.batch = Batch(events=self.batch.events, requests=self.batch.requests)

    def _lose(self) -> None:
        self.is_lost = True
        log.warning("another service has taken the history: what waited to be written is dropped")

    def _keep(self, batch: Batch) -> None:
        batch.absorb(self.batch)
        batch.rows = batch.rows[-MAX_WAITING_ROWS:]
        self.batch = batch
