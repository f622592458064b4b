"""Access to a ledger database that may be unreachable: reads fail with Retry-After, writes wait.

Calls of `LedgerStore` block; `run_read` runs them in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from runai.hub_service.ledger.store import LedgerStore, WriteBatch
from runai.hub_service.ledger.totals import Series
from runai.hub_service.wire.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

TRY_AGAIN_S = 2.0
NOT_WRITTEN = "usage could not be written, trying again"


class Access:
    """A store and the result of its last call."""

    def __init__(self, store: LedgerStore) -> None:
        """Start without an open database and without an error."""
        self._store = store
        self.is_open = False
        """True after `open`: only then are the tables known to be up to date."""
        self.trouble = ""
        """Reason why the last read or write failed; "" if it succeeded."""

    def open(self, *, again: bool = False) -> Sequence[Series]:
        """Open the database and return its open series; return none if it is unreachable.

        Raises:
            Unavailable: a permanent error. Not raised with `again`: a running service goes on, and
                the next start reports the error.
        """
        try:
            series = self._store.open()
        except (SQLAlchemyError, Unavailable) as error:
            if not again and getattr(error, "code", "") != "history_away":
                raise
            self.trouble = type(error.__cause__ or error).__name__
            log.warning(
                "the history could not be opened, trying again: %s",
                error if isinstance(error, Unavailable) else self.trouble,
            )
            return ()
        self.is_open, self.trouble = True, ""
        return series

    async def run_read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read in a thread and return its result.

        Raises:
            Unavailable: the database is unreachable.
        """
        cause: SQLAlchemyError | None = None
        if self.is_open:
            try:
                result = await asyncio.to_thread(read, *args, **kwargs)
            except SQLAlchemyError as error:
                cause, self.trouble = error, type(error).__name__
            else:
                self.trouble = ""
                return result
        raise Unavailable(
            f"The history cannot be read now ({self.trouble}).",
            hint="Jobs go on, and what is measured is written when its database is back.",
            code="history_away",
            retry_after=TRY_AGAIN_S,
        ) from cause

    def write(self, batch: WriteBatch, *, is_last: bool = False) -> dict[Series, int] | None:
        """Write a batch and return the ids of new series; None if the write failed."""
        if not self.is_open:
            return None
        try:
            ids = self._store.write(batch)
        except SQLAlchemyError as error:
            self.trouble = type(error).__name__
            what = "the last usage could not be written" if is_last else NOT_WRITTEN
            log.warning("%s: %s", what, self.trouble)
            return None
        self.trouble = ""
        return ids

    def drop_old(self, now: float) -> None:
        """Delete rows past their retention."""
        try:
            if self.is_open:
                self._store.drop_old(now)
        except SQLAlchemyError as error:
            log.warning("old usage could not be dropped: %s", type(error).__name__)
