"""Values that each process makes for itself, because a fork must not share them.

Two processes on one connection read each other's replies, and a lock that another thread held at
the fork is never released in the child.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_forks = 0
"""Number of forks between the first Python process and this one. A pid may come back, this not."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class PerProcess(Generic[T]):
    """A value that is made at its first use in each process.

    A child keeps its parent's value, unused: its end could close or unregister what both share.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Store the factory; nothing is made yet."""
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's value."""
        if (value := self.existing()) is None:
            value = self._values.setdefault(_forks, self._make())
        return value

    def existing(self) -> T | None:
        """Return this process's value if it was made already."""
        return self._values.get(_forks)


class CreatorProcess:
    """The process that made an object; in its children the object only reads."""

    def __init__(self) -> None:
        """Remember the current process."""
        self._forks = _forks

    @property
    def is_current(self) -> bool:
        """Return True in the process that made it, False in a child of it."""
        return self._forks == _forks

    def delegate_signal(self, before: Any, number: int) -> bool:  # noqa: ANN401  as `signal.getsignal`
        """Let a child handle a signal as before its parent listened; False in the parent.

        A child has its parent's handlers: without this, a pool could not end its processes.
        """
        if self.is_current:
            return False
        signal.signal(number, signal.SIG_DFL if before is None else before)
        os.kill(os.getpid(), number)
        return True
