"""Values that are drawn one time after the other, of which few have changed since the last time.

Of thousands of workloads most are as they were when somebody looks: those cost a comparison. Owned
by those who draw (`showing`, `metering`).
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """What was drawn the last time, and from what."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._before: dict[str, tuple[object, T]] = {}
        self._now: dict[str, tuple[object, T]] = {}

    def begin(self) -> None:
        """Draw everything once more: what is not asked for until the next time is forgotten."""
        self._before, self._now = self._now, {}

    def get(self, key: str, inputs: object, draw: Callable[[], T]) -> T:
        """Return the same object as the last time if its inputs are equal, else draw it."""
        known = self._before.get(key)
        # Tuples compare what is identical without a look into it.
        if known is None or known[0] != inputs:
            known = inputs, draw()
        self._now[key] = known
        return known[1]
