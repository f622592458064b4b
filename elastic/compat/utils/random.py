"""Random numbers, texts and shapes, as in tests of the original library.

Training does not use them: `runai.elastic` seeds its own.
"""

from __future__ import annotations

import random as _random
import string as _string
from collections.abc import Sequence

choice = _random.choice


def number(a: int = 10, b: int = 100) -> int:
    """Return a random integer from a to b, both included."""
    return _random.randint(a, b)  # noqa: S311 - nothing secret


def string(length: int = 5, chars: Sequence[str] | None = None) -> str:
    """Return a random text of these characters; default: letters, digits, punctuation."""
    chars = chars or _string.ascii_letters + _string.digits + _string.punctuation
    return "".join(choice(chars) for _ in range(length))


def strings(count: int | None = None) -> list[str]:
    """Return `count` random texts; default: 2 to 10."""
    return [string() for _ in range(number(2, 10) if count is None else count)]


def shape() -> tuple[int, ...]:
    """Return a random tensor shape: 2 to 4 dimensions of size 2 to 5."""
    return tuple(number(2, 5) for _ in range(number(2, 4)))
