"""Reading from the ledger's database while it may be away: in a thread, refused with a time.

What is written waits in memory until the database is there again (`ledger`); who asks is told when
to come again. Used by `ledger`.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from runai.hub_service.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

TRY_AGAIN_S = 2.0


class Reader:
    """Who asks the database, and knows whether it answered last."""

    def __init__(self) -> None:
        """Begin without trouble, and without the database."""
        self.is_open = False
        """Whether it was opened: before that nobody knows whether its tables are today's."""
        self.trouble = ""
        """Why the database could not be asked, or written to, last; "" where it could."""

    async def asked(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a read gives; once more where its connection was closed by a restart.

        Raises:
            Unavailable: the database is away.
        """
        away: SQLAlchemyError | None = None
        # The pool has thrown its old connections away by the second time.
        for _ in range(2 if self.is_open else 0):
            try:
                found = await asyncio.to_thread(read, *args, **kwargs)
            except SQLAlchemyError as failed:
                away = failed
            else:
                self.trouble = ""
                return found
        if away is not None:
            self.trouble = type(away).__name__
        raise Unavailable(
            f"The history cannot be read now ({self.trouble}).",
            hint="Jobs go on, and what is measured is written when its database is back.",
            code="history_away",
            retry_after=TRY_AGAIN_S,
        ) from away
