"""Limit on unfinished jobs per user: an array is one call, however long.

Each waiting job costs the service memory and a part of every scheduling cycle. Jobs that are being
stored count too, since storing an array takes seconds.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from runai.hub_service.wire.errors import Conflict


class JobLimit:
    """One limit for all users, and the count of jobs being stored by user."""

    def __init__(self, most: int = 0) -> None:
        """Allow each user `most` unfinished jobs; 0: no limit."""
        self._most = most
        self._reserved = Counter[str]()

    def check(self, user: str, more: int, unfinished: int) -> None:
        """Raise Conflict if `more` jobs exceed the limit of a user with `unfinished` stored ones.

        A call that adds no job, such as a session, never raises: the user may be above the limit
        since it was lowered, or by Jobs that were created outside this service.

        Raises:
            Conflict: the limit would be exceeded.
        """
        current = unfinished + self._reserved[user]
        if self._most and more and current + more > self._most:
            raise Conflict(
                f"{user} has {current:,} unfinished jobs and submits {more:,} more: the limit is"
                f" {self._most:,}.",
                hint="Submit fewer, delete some that wait, or try again when some have ended.",
                code="too_many_jobs",
            )

    @contextmanager
    def reserve(self, user: str, more: int, unfinished: int) -> Iterator[None]:
        """Check the limit, and count the jobs while the block stores them.

        Raises:
            Conflict: the limit would be exceeded.
        """
        self.check(user, more, unfinished)
        self._reserved[user] += more
        try:
            yield
        finally:
            self._reserved[user] -= more
            if not self._reserved[user]:
                del self._reserved[user]
