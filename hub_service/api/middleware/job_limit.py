"""How many unfinished jobs one person may have: arrays are one call each, however long.

Each waiting job takes the service's memory and a part of every decision, for as long as it waits.
Knows no requests; counts what is being stored, too, since arrays take seconds. Used by
`submitting`.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from runai.hub_service.wire.errors import Conflict


class JobLimit:
    """The most that anybody may have, and who is about to have more."""

    def __init__(self, most: int = 0) -> None:
        """Allow everybody so many; 0: as many as anybody likes."""
        self._most = most
        self._coming = Counter[str]()

    def check(self, user: str, more: int, unfinished: int) -> None:
        """Refuse what would be too many for somebody who has `unfinished` stored ones.

        Who adds none, as with a session, is never refused: they may have too many already, since
        the limit was lowered or of Jobs that nobody submitted here.

        Raises:
            Conflict: it would.
        """
        has = unfinished + self._coming[user]
        if self._most and more and has + more > self._most:
            raise Conflict(
                f"{user} has {has:,} unfinished jobs; with {more:,} more it would be more than"
                f" {self._most:,}.",
                hint="Submit fewer, delete some that wait, or come again when some have ended.",
                code="too_many_jobs",
            )

    @contextmanager
    def taken(self, user: str, more: int, unfinished: int) -> Iterator[None]:
        """Check, and count them while the block stores them.

        Raises:
            Conflict: they would be too many.
        """
        self.check(user, more, unfinished)
        self._coming[user] += more
        try:
            yield
        finally:
            self._coming[user] -= more
            if not self._coming[user]:
                del self._coming[user]
