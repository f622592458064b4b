"""Reach the ledger's database while it may be away: questions are refused with a time, writes wait.

Calls of `Store` block; `asked` makes them in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from runai.hub_service.ledger.store import Batch, Store
from runai.hub_service.ledger.totals import Series
from runai.hub_service.wire.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

TRY_AGAIN_S = 2.0
WAITS = "usage could not be written, trying again"


class Access:
    """One store, and whether it answered last."""

    def __init__(self, store: Store) -> None:
        """Begin without trouble, and without the database."""
        self._store = store
        self.is_open = False
        """Whether it was opened: before that nobody knows whether its tables are today's."""
        self.trouble = ""
        """Why the database could not be asked, or written to, last; "" where it could."""

    def open(self, *, again: bool = False) -> Sequence[Series]:
        """Open it, and return the series that it has: none where it is away.

        Raises:
            Unavailable: it will not have us, however long we wait. `again`: never, while we serve
                that is no reason to end; it is said at the next start.
        """
        try:
            found = self._store.open()
        except (SQLAlchemyError, Unavailable) as away:
            if not again and getattr(away, "code", "") != "history_away":
                raise
            self.trouble = type(away.__cause__ or away).__name__
            log.warning(
                "the history could not be opened, trying again: %s",
                away if isinstance(away, Unavailable) else self.trouble,
            )
            return ()
        self.is_open, self.trouble = True, ""
        return found

    async def asked(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a read gives.

        Raises:
            Unavailable: the database is away.
        """
        away: SQLAlchemyError | None = None
        if self.is_open:
            try:
                found = await asyncio.to_thread(read, *args, **kwargs)
            except SQLAlchemyError as failed:
                away, self.trouble = failed, type(failed).__name__
            else:
                self.trouble = ""
                return found
        raise Unavailable(
            f"The history cannot be read now ({self.trouble}).",
            hint="Jobs go on, and what is measured is written when its database is back.",
            code="history_away",
            retry_after=TRY_AGAIN_S,
        ) from away

    def write(self, batch: Batch, *, is_last: bool = False) -> dict[Series, int] | None:
        """Write a batch and return the new series' ids; None: it could not be written."""
        if not self.is_open:
            return None
        try:
            ids = self._store.write(batch)
        except SQLAlchemyError as error:
            self.trouble = type(error).__name__
            what = "the last usage could not be written" if is_last else WAITS
            log.warning("%s: %s", what, self.trouble)
            return None
        self.trouble = ""
        return ids

    def drop_old(self, now: float) -> None:
        """Delete what is past its time."""
        try:
            if self.is_open:
                self._store.drop_old(now)
        except SQLAlchemyError as error:
            log.warning("old usage could not be dropped: %s", type(error).__name__)
